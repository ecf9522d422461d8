#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "windlass/report/methods_text.h"

namespace windlass {
namespace {

// What is drawn: from the least to the largest batch, from 0 to the most samples a second.
struct PlotRange {
  double least = 0, most = 0, rate = 0;
  bool empty() const { return !(rate > 0); }
  double x(int64_t batch) const {
    if (most <= least) return 0.5;
    return std::log(static_cast<double>(batch) / least) / std::log(most / least);
  }
  double y(double value) const { return value / rate; }
};

PlotRange range_of(const MethodsReport& report) {
  PlotRange range;
  for (const MethodAdvice& advice : report.methods)
    for (const BatchPoint& point : advice.curve.points) {
      if (!point.fits) continue;
      const auto batch = static_cast<double>(point.batch);
      range.least = range.least > 0 ? std::min(range.least, batch) : batch;
      range.most = std::max(range.most, batch);
      range.rate = std::max(range.rate, point.rate());
    }
  return range;
}

char mark_of(const std::string& name) {
  if (name == "compress-8") return '8';
  if (name == "compress-4") return '4';
  if (name == "compress-2") return '2';
  return name.empty() ? '?' : name.front();
}

constexpr std::array<const char*, 7> kColours = {"#222222", "#1f77b4", "#d62728", "#9467bd",
                                                 "#8c564b", "#e377c2", "#2ca02c"};

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '&': result += "&amp;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
  }
  return result;
}

}  // namespace

std::string methods_plot(const MethodsReport& report, size_t width, size_t height) {
  const PlotRange range = range_of(report);
  if (range.empty()) return "";
  std::vector<std::string> rows(height, std::string(width, ' '));
  std::string legend;
  // The first ones are drawn last, and stay visible.
  for (size_t m = report.methods.size(); m-- > 0;) {
    const MethodCurve& curve = report.methods[m].curve;
    const char mark = mark_of(curve.name);
    legend = fmt::format("{}{} {}{}", m == 0 ? "" : "  ", mark, curve.name, legend);
    const BatchPoint* before = nullptr;
    const auto column = [&](const BatchPoint& point) {
      return static_cast<int>(std::lround(range.x(point.batch) * static_cast<double>(width - 1)));
    };
    const auto row = [&](double rate) {
      const double up = range.y(rate) * static_cast<double>(height - 1);
      return height - 1 -
             static_cast<size_t>(std::lround(std::clamp(up, 0.0, static_cast<double>(height - 1))));
    };
    for (const BatchPoint& point : curve.points) {
      if (!point.fits) continue;
      // Dots on the way from the point before.
      if (before != nullptr)
        for (int c = column(*before) + 1; c < column(point); ++c) {
          const double share = static_cast<double>(c - column(*before)) /
                               static_cast<double>(column(point) - column(*before));
          char& cell = rows[row(before->rate() + share * (point.rate() - before->rate()))]
                           [static_cast<size_t>(c)];
          if (cell == ' ') cell = '.';
        }
      rows[row(point.rate())][static_cast<size_t>(column(point))] = mark;
      before = &point;
    }
  }
  std::string text = fmt::format("samples/s, up to {:.4g}\n", range.rate);
  for (const std::string& line : rows) text += "  |" + line + "\n";
  text += "  +" + std::string(width, '-') + "\n";
  const std::string least = fmt::format("batch {:.0f}", range.least);
  const std::string most = fmt::format("{:.0f}", range.most);
  const size_t gap = width > least.size() + most.size() ? width - least.size() - most.size() : 1;
  return text + "   " + least + std::string(gap, ' ') + most + "\n   " + legend + "\n";
}

std::string methods_svg(const MethodsReport& report) {
  constexpr double kWidth = 760, kHeight = 440, kLeft = 70, kRight = 150, kTop = 40, kBottom = 50;
  const PlotRange range = range_of(report);
  const double inner_width = kWidth - kLeft - kRight, inner_height = kHeight - kTop - kBottom;
  const auto x = [&](int64_t batch) { return kLeft + range.x(batch) * inner_width; };
  const auto y = [&](double rate) { return kTop + (1 - range.y(rate)) * inner_height; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n",
      kWidth, kHeight, kLeft,
      escaped(fmt::format("{} on {}, run by {}: samples a second by batch", report.model,
                          report.machine, report.runner)));
  const auto line = [&](double x1, double y1, double x2, double y2, const char* style) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1,
                       y1, x2, y2, style);
  };
  line(kLeft, kTop, kLeft, kTop + inner_height, "stroke=\"black\"");
  line(kLeft, kTop + inner_height, kLeft + inner_width, kTop + inner_height, "stroke=\"black\"");
  if (range.empty()) return svg + "<text x=\"90\" y=\"80\">nothing fits</text>\n</svg>\n";
  for (int i = 0; i <= 4; ++i) {
    const double rate = range.rate * i / 4;
    line(kLeft - 4, y(rate), kLeft, y(rate), "stroke=\"black\"");
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3g}</text>\n",
                       kLeft - 8, y(rate) + 4, rate);
  }
  for (double b = range.least; b <= range.most; b *= 2) {
    const auto batch = static_cast<int64_t>(b);
    line(x(batch), kTop + inner_height, x(batch), kTop + inner_height + 4, "stroke=\"black\"");
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                       x(batch), kTop + inner_height + 18, batch);
  }
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">batch</text>\n",
                     kLeft + inner_width / 2, kHeight - 12);
  for (size_t m = 0; m < report.methods.size(); ++m) {
    const MethodCurve& curve = report.methods[m].curve;
    const char* colour = kColours[m % kColours.size()];
    std::string path;
    for (const BatchPoint& point : curve.points) {
      if (!point.fits) continue;
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : " L", x(point.batch),
                          y(point.rate()));
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                         x(point.batch), y(point.rate()), colour);
    }
    if (!path.empty())
      svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                         path, colour);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}{}</text>\n",
                       kLeft + inner_width + 12, kTop + 16 + 18 * static_cast<double>(m), colour,
                       escaped(curve.name),
                       m == 0                   ? ""
                       : report.methods[m].pays ? ": pays"
                                                : "");
  }
  return svg + "</svg>\n";
}

}  // namespace windlass
