#include "windlass/serve/page_server.h"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/serve/bounded_stream.h"

namespace windlass {
namespace {

constexpr size_t kConnections = 64;       // that are served at a time; others wait to be accepted
constexpr size_t kMostBody = 2 << 20;     // of a request: two uploaded files
constexpr size_t kMostSession = 64;       // bytes of a session's name
constexpr int kMostWaiting = 8;           // searches that wait for others to end
constexpr std::chrono::seconds kWait{3};  // and for how long
constexpr std::chrono::milliseconds kBeat{200};  // after which a silent client is looked at

// A client has one request, within bounds.
class BoundedServer final : public httplib::Server {
 private:
  template <typename Self>
  static bool process(Self& self, httplib::Stream& stream) {
    bool closed = false;
    const std::function<void(httplib::Request&)> nothing = [](httplib::Request&) {};
    if constexpr (requires { self.process_request(stream, true, closed, nothing); })
      return self.process_request(stream, true, closed, nothing);
    else
      return self.process_request(stream, "", 0, "", 0, true, closed, nothing);
  }

  bool process_and_close_socket(socket_t socket) override {
    bool done = false;
    try {
      BoundedStream stream(socket, ConnectionLimits{});
      done = process(*this, stream);
    } catch (const std::exception&) {
      // No memory, no processes: this connection ends, the others go on.
    }
    // What the client still sends must not take its answer away: it is told that no more is read,
    // and has a moment to notice.
    shutdown(socket, SHUT_WR);
    timeval moment = {.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment));
    std::array<char, 4096> ignored{};
    for (int i = 0; i < 64 && recv(socket, ignored.data(), ignored.size(), 0) > 0; ++i) {
    }
    ::close(socket);
    return done;
  }
};

// The search of a connection: counted among those that run, and ended when it goes.
struct RunningSearch {
  std::string session;
  std::string preface;
  std::unique_ptr<Child> child;  // none yet: waits for its turn
  bool cancelled = false;
};

// So many searches at a time; a session has one.
class Searches {
 public:
  Searches(int most, std::string program) : most_(most), program_(std::move(program)) {}

  // None: too many run already, or a newer one of the session came while this one waited.
  std::shared_ptr<RunningSearch> begin(const std::string& session, const ChildCommand& command) {
    std::unique_lock lock(mutex_);
    for (const auto& other : all_)
      if (!session.empty() && other->session == session) cancel(*other);
    if (waiting_ >= kMostWaiting || stopped_) return nullptr;
    auto search = std::make_shared<RunningSearch>(
        RunningSearch{.session = session, .preface = command.preface, .child = {}});
    all_.push_back(search);
    ++waiting_;
    const bool mine = turn_.wait_for(
        lock, kWait, [&] { return running_ < most_ || search->cancelled || stopped_; });
    --waiting_;
    if (!mine || search->cancelled || stopped_) {
      all_.remove(search);
      return nullptr;
    }
    ++running_;
    try {
      search->child = std::make_unique<Child>(program_, command);
    } catch (...) {
      leave(search);
      throw;
    }
    return search;
  }

  // Waits for the process to be gone: others start only then.
  void end(const std::shared_ptr<RunningSearch>& search) {
    std::unique_ptr<Child> child;
    {
      const std::scoped_lock lock(mutex_);
      child = std::move(search->child);
    }
    child.reset();
    const std::scoped_lock lock(mutex_);
    leave(search);
  }

  void stop() {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    for (const auto& search : all_) cancel(*search);
    turn_.notify_all();
  }

 private:
  void leave(const std::shared_ptr<RunningSearch>& search) {
    --running_;
    all_.remove(search);
    turn_.notify_all();
  }
  void cancel(RunningSearch& search) {
    search.cancelled = true;
    if (search.child) search.child->kill();
    turn_.notify_all();
  }

  const int most_;
  const std::string program_;
  std::mutex mutex_;
  std::condition_variable turn_;
  std::list<std::shared_ptr<RunningSearch>> all_;
  int running_ = 0, waiting_ = 0;
  bool stopped_ = false;
};

void answer_text(httplib::Response& response, int status, const std::string& text) {
  response.status = status;
  response.set_content(text + "\n", "text/plain; charset=utf-8");
}

// No page of another origin may read, frame or drive this one; nothing is loaded from elsewhere.
const httplib::Headers& safe_headers() {
  static const httplib::Headers kHeaders = {
      {"Content-Security-Policy",
       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
       "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cache-Control", "no-store"}};
  return kHeaders;
}

bool same_text(std::string_view a, std::string_view b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return different == 0;
}

}  // namespace

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

struct PageServer::Parts {
  PageServerOptions options;
  Searches searches;
  BoundedServer server;
  int port = 0;

  explicit Parts(PageServerOptions given)
      : options(std::move(given)), searches(options.searches, options.program) {}

  // A name that resolves to this host is no proof that a request is meant for it (DNS rebinding).
  bool is_own_host(const std::string& name) const {
    const auto is = [&](std::string_view host) { return name == fmt::format("{}:{}", host, port); };
    if (is(options.host) || is("[" + options.host + "]")) return true;
    if (is_loopback(options.host)) return is("127.0.0.1") || is("localhost") || is("[::1]");
    // All addresses: any number is one of this host's, names are not known.
    if (options.host != "0.0.0.0" && options.host != "::") return false;
    return is("localhost") || (name.ends_with(fmt::format(":{}", port)) &&
                               name.find_first_not_of("0123456789abcdef.:[]") == std::string::npos);
  }

  // Empty: the request may be answered.
  std::string refusal(const httplib::Request& request) const {
    const std::string host = request.get_header_value("Host");
    if (request.get_header_value_count("Host") != 1 || !is_own_host(host))
      return "this server answers to its own address alone";
    if (request.has_header("Origin") && request.get_header_value("Origin") != "http://" + host)
      return "pages of other origins are not answered";
    const std::string site = request.get_header_value("Sec-Fetch-Site");
    if (!site.empty() && site != "same-origin" && site != "none")
      return "pages of other origins are not answered";
    if (request.method == "POST" &&
        !same_text(request.get_header_value("X-Windlass-Token"), options.token))
      return "the token of the page is missing; load the page again";
    return {};
  }

  void plan(const httplib::Request& request, httplib::Response& response) {
    std::shared_ptr<RunningSearch> search;
    try {
      std::string session = request.get_header_value("X-Windlass-Session");
      if (session.size() > kMostSession) fail_input("the name of the session is too long");
      search = searches.begin(session, options.command(request.body));
    } catch (const Error& error) {
      return answer_text(response, error.kind() == ErrorKind::Input ? 400 : 503, error.message());
    }
    if (!search) {
      response.set_header("Retry-After", "1");
      return answer_text(response, 503, "other searches are under way; try again in a moment");
    }
    response.set_chunked_content_provider(
        "application/x-ndjson; charset=utf-8",
        [search](size_t, httplib::DataSink& sink) {
          std::string text = std::exchange(search->preface, {});
          if (text.empty()) switch (search->child->read(text, kBeat)) {
              case Child::Said::End: sink.done(); return true;
              case Child::Said::Nothing: text = "\n"; break;
              case Child::Said::Something: break;
            }
          return sink.is_writable() && sink.write(text.data(), text.size());
        },
        [this, search](bool) { searches.end(search); });
  }

  void set_up() {
    server.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
    server.set_payload_max_length(kMostBody);
    server.set_default_headers(safe_headers());
    server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& to) {
      using Answer = httplib::Server::HandlerResponse;
      if (const std::string why = refusal(request); !why.empty()) {
        answer_text(to, 403, why);
        return Answer::Handled;
      }
      const bool known = request.path == "/" || request.path == "/plan";
      const bool fits = request.path == "/" ? request.method == "GET" || request.method == "HEAD"
                                            : request.method == "POST";
      if (known && fits) return Answer::Unhandled;
      answer_text(to, known ? 405 : 404, known ? "not in this way" : "there is no such page");
      return Answer::Handled;
    });
    server.Get("/", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(options.page, "text/html; charset=utf-8");
    });
    server.Post("/plan", [this](const httplib::Request& request, httplib::Response& response) {
      if (!request.get_header_value("Content-Type").starts_with("application/json"))
        return answer_text(response, 415, "expected application/json");
      plan(request, response);
    });
    server.set_exception_handler([](const httplib::Request&, httplib::Response& response, auto&&) {
      answer_text(response, 503, "this request could not be answered");
    });
  }
};

PageServer::PageServer(PageServerOptions options)
    : parts_(std::make_unique<Parts>(std::move(options))) {
  parts_->set_up();
  const std::string& host = parts_->options.host;
  const int wanted = parts_->options.port;
  // The library would share a port with whoever else listens there.
  parts_->server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  if (wanted == 0)
    parts_->port = parts_->server.bind_to_any_port(host);
  else
    parts_->port = parts_->server.bind_to_port(host, wanted) ? wanted : -1;
  if (parts_->port <= 0)
    fail_input("--host {} --port {}: cannot listen there; is the port taken?", host, wanted);
}

PageServer::~PageServer() = default;

int PageServer::port() const { return parts_->port; }
std::string PageServer::address() const {
  const std::string& host = parts_->options.host;
  const bool six = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}/", six ? "[" : "", host, six ? "]" : "", parts_->port);
}
void PageServer::run() { parts_->server.listen_after_bind(); }
void PageServer::stop() {
  parts_->searches.stop();
  parts_->server.stop();
}

}  // namespace windlass
