// The sections that make up a report, and the theme. `report` has what is shown.

const report = { data: null, timelines: [] };
window.windlassReport = report;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
  for (const timeline of report.timelines) timeline.ask();
}

function tiles(plan) {
  const device = plan.memories.filter(memory => !memory.host);
  const fullest = device.reduce((most, memory) => memory.peak > most.peak ? memory : most, device[0]);
  const list = [[formatSeconds(plan.step_time), 'a step', plan.fits ? '' : 'without limits'],
    [digits(plan.samples_per_s), 'samples/s', plan.tokens_per_s ? Math.floor(plan.tokens_per_s).toLocaleString('en-US') + ' tokens/s' : ''],
    [formatBytes(fullest.peak), 'peak of the fullest device', `${formatPercent(fullest.peak / fullest.limit)} of ${formatBytes(fullest.limit)}`],
    [formatPercent(plan.mfu), 'MFU', `HFU ${formatPercent(plan.hfu)}, of ${digits(plan.peak_flops / 1e12)} TFLOPS ${plan.precision}`],
    [formatCount(plan.parameters), 'parameters', `${digits(fullest.peak / Math.max(1, plan.parameters))} bytes each at the peak of a device`]];
  // Of the memory where the step stops, in full: that of a host may be it.
  const stopped = plan.failure && plan.memories.find(memory => memory.name === plan.failure.memory);
  const over = stopped ? Math.max(plan.failure.missing, stopped.peak - plan.failure.limit) : 0;
  if (plan.failure) list.splice(2, 0, [formatBytes(over || plan.failure.missing), 'over the limit', `on ${plan.failure.memory}`]);
  return el('div', { class: 'tiles' }, ...list.map(([value, label, note]) => el('div', { class: 'tile' + (label === 'over the limit' ? ' bad' : '') },
    el('div', { class: 'value' }, value), el('div', { class: 'label' }, label), note ? el('div', { class: 'note' }, note) : null)));
}

function chips(plan) {
  const degrees = plan.degrees, list = [];
  for (const name of ['dp', 'tp', 'pp', 'cp', 'ep']) if (degrees[name] > 1 || ['dp', 'tp', 'pp'].includes(name)) list.push([name, degrees[name]]);
  if (plan.packs) list.push(['packs of layers', plan.layers.length]);
  else list.push(['ZeRO', degrees.zero]);
  list.push(['micro-batches', degrees.micro_batches]);
  if (degrees.saved_bytes > 0) {
    const share = bytes => bytes > 0 ? formatPercent(bytes / degrees.saved_bytes) : 'none';
    list.push(['recompute', share(degrees.recomputed_bytes)], ['offload', share(degrees.offloaded_bytes)]);
    if (degrees.compressed_bytes > 0) list.push(['compressed', share(degrees.compressed_bytes)]);
  }
  const of = (what, bytes) => { if (bytes > 0) list.push([what, formatPercent(bytes / degrees.weight_bytes)]); };
  of('weights on the host', degrees.host_weight_bytes);
  of('optimizer on the host', degrees.host_update_bytes);
  if (plan.packs) list.push(['recompute', plan.layers.some(row => row.action.startsWith('recompute')) ? 'by pack' : 'none'], ['weights', 'from the host']);
  list.push(['devices', plan.devices < plan.all_devices ? `${plan.devices} of ${plan.all_devices}` : plan.devices], ['run by', plan.runner]);
  return el('ul', { class: 'chips', 'aria-label': 'Degrees of parallelism' }, ...list.map(([name, value]) => el('li', {}, name + ' ', el('b', {}, value))));
}

// Links to sections are short, to have room on a line.
const SECTION_WORDS = { comparison: 'Side by side', time: 'Time', memories: 'Memory', timeline: 'Timeline', frontier: 'Frontier', throughput: 'Methods',
  strategy: 'Strategy', links: 'Links', run: 'Measured', assumptions: 'Assumptions' };

function section(id, title, lead, ...content) {
  document.getElementById('sections').append(el('a', { href: '#' + id }, SECTION_WORDS[id]));
  document.getElementById('body').append(el('section', { class: 'card', id, 'aria-labelledby': id + '-title' },
    el('h2', { id: id + '-title' }, title), lead ? el('p', { class: 'lead' }, lead) : null, ...content));
}

// The same for each plan, side by side where there are two.
function each(plans, draw) {
  if (plans.length === 1) return draw(plans[0]);
  return el('div', { class: 'pair two' }, ...plans.map(plan => el('div', {}, el('h3', {}, plan.path), draw(plan))));
}

function memories(plan) {
  const shown = plan.memories.slice(0, 8), rest = plan.memories.slice(8);
  const charts = el('div', { class: 'many' }, ...shown.map(memory => drawMemory(plan, memory)));
  if (!rest.length) return charts;
  const more = el('details', {}, el('summary', {}, `${rest.length} more`));
  more.addEventListener('toggle', () => {
    if (more.childElementCount < 2) more.append(el('div', { class: 'many' }, ...rest.map(memory => drawMemory(plan, memory))));
  });
  return el('div', {}, charts, more);
}

// "Fits:" in its colour, and the rest.
function verdictNodes(plan) {
  const [word, ...rest] = plan.verdict.split(':');
  return [el('strong', { class: plan.fits ? 'good' : 'bad' }, word + ':'), ...breakable(rest.join(':'))];
}

// All of it, for one plan or two; what was shown before is gone.
function showPlans() {
  for (const id of ['sections', 'body', 'facts']) document.getElementById(id).replaceChildren();
  report.timelines = [];
  const plans = report.data.plans, first = plans[0], two = plans.length > 1;
  document.getElementById('headline').replaceChildren(...breakable(two ? `${first.title}: ${plans[0].path} and ${plans[1].path}` : first.title));
  const verdict = document.getElementById('verdict');
  verdict.replaceChildren(...verdictNodes(first));
  document.getElementById('facts').append(tiles(first), chips(first));
  if (two) section('comparison', 'Side by side', '', drawComparison(plans), el('p', { class: 'second-verdict' }, plans[1].path + ' ', ...verdictNodes(plans[1])));
  section('time', 'Where the time goes', 'Of a step, as the compute queue of the devices sees it. What is hidden behind kernels is not waited for and takes no time.', each(plans, drawBreakdown));
  section('memories', 'Memory', first.fits ? 'Bytes alive over the step, against what each device may use. The triangle marks the peak.'
    : 'Bytes alive over the step if there were no limits: this is what it would take.', memoryLegend(), each(plans, memories));
  section('timeline', 'Timeline', plans.map(plan => plan.timeline.tasks.toLocaleString('en-US')).join(' and ') + ' tasks' + (first.timeline.slices < first.timeline.tasks ? ', neighbours of a kind drawn as one.' : '.')
    + ' Devices that do the same share their tracks.', each(plans, plan => {
    const timeline = new Timeline(plan);
    report.timelines.push(timeline);
    return timeline.mount();
  }));
  section('frontier', 'Time against memory', (first.frontier.length ? 'What a step takes with less or more memory on each device. The search was for this limit: points at other limits are by-products, not the best there. ' : '')
    + (first.baselines.length ? 'Numbered points are what the usual strategies would take.' : ''), drawFrontier(first, plans[1]));
  if (first.methods) section('throughput', 'Memory methods by batch', `Throughput of ${first.methods.base} with everything kept, and with each way to save memory, in one pass inside of the limit. Where a line ends, the next batch does not fit.`, drawMethods(first));
  else if (first.no_methods) section('throughput', 'Memory methods by batch', 'Not shown: ' + first.no_methods + '.');
  section('strategy', 'Strategy, layer by layer', first.degrees.text + '. ' + first.degrees.memory + '.' + (first.packs ? '' : ' A split says what is cut into how many parts: samples/4 is a quarter of the samples on each of four devices; other names are loops of the op.'), each(plans, drawLayers));
  section('links', 'Links', 'Bytes that cross each direction of each link in a step.', each(plans, drawLinks));
  if (report.data.run) section('run', 'Predicted beside measured', 'A run of this plan; medians over its steps but the first.', drawRun(report.data.run));
  section('assumptions', 'What the numbers rest on', 'Predictions, not measurements, unless it says measured.', each(plans, drawAssumptions));
}

let stored = null;
try { stored = localStorage.getItem('windlass-theme'); } catch (error) { /* pages from disk may have no storage */ }
setTheme(stored === 'dark' || stored === 'light' ? stored : matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
document.getElementById('theme').addEventListener('click', () => {
  const theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  setTheme(theme);
  try { localStorage.setItem('windlass-theme', theme); } catch (error) { /* as above */ }
});
