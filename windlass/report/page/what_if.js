// The what-if page: controls are flags of "windlass plan", answers are lines of JSON, better ones after worse.

const offered = JSON.parse(document.getElementById('data').textContent);
const by = id => document.getElementById(id);
const FIELDS = ['model', 'machine', 'batch', 'seq', 'memory', 'dtype', 'optimizer', 'runner', 'seconds'];
const WHOLE = ['batch', 'seq'];
const session = [...crypto.getRandomValues(new Uint8Array(8))].map(b => b.toString(16).padStart(2, '0')).join('');
const asked = { running: null, answers: 0, number: 0, files: {} };
report.asked = asked;

// The frame that both pages share has no place for them.
function settle() {
  by('headline').before(by('status'));
  by('verdict').after(by('command_box'));
}

function offer() {
  by('models').append(...offered.models.map(name => el('option', { value: name })));
  by('machines').append(...offered.machines.map(([name, words]) => el('option', { value: name, label: `${name}: ${words}` })));
  by('runner').append(...offered.runners.map(name => el('option', {}, name)));
  by('seconds').append(...[1, 5, 15, 30, 60].filter(n => n <= offered.most_seconds).map(n => el('option', { value: n }, `${n} s`)));
  const box = (name, words, on) => {
    const input = el('input', { type: 'checkbox', id: 'may-' + name, 'data-method': name });
    input.checked = on;
    return el('label', { for: 'may-' + name }, input, words);
  };
  by('methods').append(...offered.methods.map(([name, words]) => box(name, words, true)), box('compress', 'compress activations (changes the mathematics)', false));
}

// What the controls say. Files are not part of the address.
function question() {
  const ask = {};
  for (const name of FIELDS) {
    const text = by(name).value.trim();
    if (text) ask[name] = WHOLE.includes(name) || name === 'seconds' ? Number(text) : text;
  }
  ask.off = offered.methods.map(([name]) => name).filter(name => !by('may-' + name).checked);
  if (by('may-compress').checked) ask.compress = true;
  for (const kind of ['model', 'machine']) if (asked.files[kind]) ask[kind + '_file'] = asked.files[kind];
  return ask;
}
function keep() {
  const words = new URLSearchParams();
  for (const name of FIELDS) if (by(name).value.trim()) words.set(name, by(name).value.trim());
  const off = [...document.querySelectorAll('#methods [data-method]')].filter(n => n.checked === (n.dataset.method === 'compress'));
  if (off.length) words.set('changed', off.map(n => n.dataset.method).join(' '));
  history.replaceState(null, '', '#' + words);
}
function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const usual = { model: 'gpt2-xl', machine: '4x3090', batch: '8', optimizer: 'adam', runner: 'windlass', seconds: '5' };
  for (const name of FIELDS) by(name).value = words.get(name) || (words.size ? '' : usual[name] || '');
  for (const name of ['optimizer', 'runner', 'seconds']) if (!by(name).value) by(name).value = usual[name];
  const changed = (words.get('changed') || '').split(' ');
  for (const node of document.querySelectorAll('#methods [data-method]')) node.checked = changed.includes(node.dataset.method) === (node.dataset.method === 'compress');
}

// The slider stands where the words are, and is pale where they are bytes.
function slide() {
  const text = by('memory').value.trim(), share = /^(\d+(?:\.\d+)?)\s*%$/.exec(text);
  by('share').value = share ? share[1] : 100;
  by('share').classList.toggle('unused', text !== '' && !share);
}

function status(text, kind) {
  by('said').textContent = text;
  by('status').className = kind || '';
}

function show(plan) {
  report.data = { plans: [plan] };
  const open = location.hash, y = scrollY;
  showPlans();
  // Anchors of sections would take the place of the question in the address.
  for (const link of document.querySelectorAll('#sections a')) link.addEventListener('click', event => {
    event.preventDefault();
    document.querySelector(link.getAttribute('href')).scrollIntoView();
  });
  if (open !== location.hash) history.replaceState(null, '', open);
  scrollTo({ top: y, behavior: 'instant' });
  document.body.classList.remove('stale');
}

// Lines break between flags only: what is copied has no other spaces than the command.
function showCommand(command) {
  const [verb, ...flags] = command.split(' --');
  by('command').replaceChildren(verb, ...flags.flatMap(flag => [' ', el('span', {}, '--' + flag)]));
  by('command_box').hidden = false;
}

function take(line, state) {
  const said = JSON.parse(line);
  if (said.command) showCommand(said.command);
  if (said.error) { state.failed = true; status(said.error, 'bad'); }
  if (said.plan) {
    asked.answers++;
    state.answers += said.better;
    show(said.plan);
    if (said.better) status(`${state.answers === 1 ? 'First answer' : 'Better plan'} after ${digits(said.seconds)} s; still searching`, 'busy');
    if (said.better) tell(said.plan.verdict);
  }
  if (said.done) {
    state.done = true;
    status(`Searched for ${digits(said.seconds)} s, ${said.tried.toLocaleString('en-US')} strategies simulated; ` + (said.fits ? `${state.answers} answer${state.answers === 1 ? '' : 's'}, each better than the one before` : 'nothing fits'));
  }
}

async function ask() {
  keep();
  if (asked.running) asked.running.abort();
  const control = asked.running = new AbortController(), number = ++asked.number;
  const state = { answers: 0, done: false, failed: false };
  document.body.classList.add('stale');
  status('Searching', 'busy');
  try {
    let answer;
    for (let tries = 0; ; tries++) {
      answer = await fetch('/plan', { method: 'POST', signal: control.signal, body: JSON.stringify(question()), headers: {
        'Content-Type': 'application/json', 'X-Windlass-Token': offered.token, 'X-Windlass-Session': session } });
      if (answer.status !== 503 || tries >= 5) break;
      status('Other searches are under way; waiting', 'busy');
      await new Promise(done => setTimeout(done, 1000));
    }
    if (!answer.ok) { state.failed = true; throw new Error((await answer.text()).trim()); }
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    let text = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (number !== asked.number) return;
      if (done) break;
      text += decoder.decode(value, { stream: true });
      for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n')) {
        const line = text.slice(0, end);
        text = text.slice(end + 1);
        if (line) take(line, state);
      }
    }
    if (!state.done && !state.failed) status('The search was ended: it took more time or memory than the page may use. "windlass plan" has no such bounds.', 'bad');
  } catch (error) {
    if (number !== asked.number || error.name === 'AbortError') return;
    status(state.failed ? error.message : 'The server does not answer; is "windlass serve" still running?', 'bad');
  }
  if (number === asked.number) asked.running = null;
}

let waiting = 0;
function askSoon(event) {
  if (event && event.target.type === 'file') return;
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const wrong = [...document.querySelectorAll('#controls input')].filter(node => !node.checkValidity());
    for (const node of document.querySelectorAll('#controls input')) node.setAttribute('aria-invalid', String(wrong.includes(node)));
    if (wrong.length) status(`${wrong[0].labels[0].textContent}: ${wrong[0].validationMessage}`, 'bad');
    else ask();
  }, 250);
}

function listen() {
  by('controls').addEventListener('submit', event => { event.preventDefault(); ask(); });
  by('controls').addEventListener('input', askSoon);
  by('share').addEventListener('input', () => { by('memory').value = by('share').value === '100' ? '' : by('share').value + '%'; slide(); });
  by('memory').addEventListener('input', slide);
  slide();
  by('copy').addEventListener('click', async () => {
    try { await navigator.clipboard.writeText(by('command').textContent); tell('Copied'); by('copy').textContent = 'Copied'; }
    catch (error) { getSelection().selectAllChildren(by('command')); tell('Selected'); }
    setTimeout(() => { by('copy').textContent = 'Copy'; }, 1500);
  });
  for (const kind of ['model', 'machine']) {
    const input = by(kind + '_file'), clear = by(kind + '_file_clear'), name = by(kind + '_file_name');
    const set = file => {
      asked.files[kind] = file;
      name.textContent = file ? file.name : '';
      clear.hidden = !file;
      by(kind).disabled = Boolean(file);
      ask();
    };
    input.addEventListener('change', async () => {
      if (!input.files.length) return;
      const file = input.files[0];
      if (file.size > 1 << 20) return status(`${file.name}: is larger than 1 MiB`, 'bad');
      set({ name: file.name, text: await file.text() });
      input.value = '';
    });
    clear.addEventListener('click', () => { set(null); by(kind).focus(); });
  }
}

settle();
offer();
recall();
listen();
ask();
