// Throughput against batch by memory method, as "windlass advise" has it, with this plan beside.

const METHOD_LOOKS = { plain: ['ink', ''], recompute: ['c-recompute', ''], offload: ['c-swap', ''],
  'compress-8': ['c-communication', ''], 'compress-4': ['c-communication', '7 4'], 'compress-2': ['c-communication', '2 4'] };
const methodLook = name => METHOD_LOOKS[name] || ['c-other', ''];

function bestOf(method) { return method.points.reduce((best, point) => !best || point[1] > best[1] ? point : best, null); }

function drawMethods(plan) {
  const methods = plan.methods.list, drawn = methods.filter(method => method.points.length);
  const mine = [plan.samples, plan.samples_per_s];
  const holder = el('div', { class: 'chart', 'data-chart': 'methods' });
  if (drawn.length) responsive(holder, width => holder.replaceChildren(methodsSvg(plan, drawn, mine, width)));
  else holder.append(el('p', { class: 'lead' }, 'None of them fits with one sample a device.'));
  const swatch = ([colour, dash]) => svg('svg', { class: 'swatch', viewBox: '0 0 24 10', 'aria-hidden': 'true' },
    svg('line', { x1: 0, x2: 24, y1: 5, y2: 5, style: `stroke: var(--${colour})`, 'stroke-dasharray': dash }));
  const legend = el('ul', { class: 'legend' }, ...drawn.map(method => el('li', {}, swatch(methodLook(method.name)),
    method.name + (method.lossy ? ' (lossy)' : ''))));
  const plain = bestOf(methods[0]);
  const rows = [['this plan', plan.samples, digits(plan.samples_per_s), plain ? (plan.samples_per_s / plain[1]).toFixed(2) + ' x' : '', plan.fits ? '' : 'does not fit']];
  for (const method of methods) {
    const best = bestOf(method), words = !best ? 'does not fit' : method === methods[0] ? '' : method.pays ? 'pays' : 'does not pay';
    rows.push([method.name + (method.lossy ? ' (lossy)' : ''), method.largest || '-', best ? digits(best[1]) : '-',
      best && plain ? (best[1] / plain[1]).toFixed(2) + ' x' : '', el('td', { class: method.pays ? 'good' : '' }, words)]);
  }
  const why = methods.slice(1).filter(method => method.because).map(method =>
    el('li', {}, `${method.name} ${method.pays ? 'pays' : 'does not pay'}: ${method.because}`));
  return el('div', {}, legend, holder,
    table('Memory methods: largest batch and best throughput', ['method', '#batch up to', '#samples/s', '#of plain', ''], rows, ['me']),
    why.length ? el('details', {}, el('summary', {}, 'Why'), el('ul', { class: 'why' }, ...why)) : null);
}

function methodsSvg(plan, drawn, mine, width) {
  const height = Math.round(Math.min(360, Math.max(240, width * 0.42)));
  const left = 62, right = 20, top = 20, bottom = 42;
  const points = drawn.flatMap(method => method.points);
  if (plan.fits) points.push(mine);
  const least = Math.min(...points.map(p => p[0])), most = Math.max(...points.map(p => p[0]));
  const endY = Math.max(...points.map(p => p[1])) * 1.1 || 1;
  const x = batch => left + (width - left - right) * (most > least ? Math.log(batch / least) / Math.log(most / least) : 0.5);
  const y = rate => height - bottom - (height - top - bottom) * rate / endY;
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img',
    'aria-label': 'Samples a second against the batch, a line for each memory method; the table below has the numbers' });
  for (const t of ticks(endY, 4)) root.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t) }),
    svg('text', { x: left - 8, y: y(t) + 4, 'text-anchor': 'end' }, digits(t)));
  // Batches from the least on, each twice the one before, as far as there is room for their numbers.
  const doublings = Math.log2(most / least), every = Math.max(1, Math.ceil(doublings * 46 / Math.max(1, width - left - right)));
  for (let batch = least, i = 0; batch <= most; batch *= 2, i++)
    if (i % every === 0) root.append(svg('text', { x: x(batch), y: height - bottom + 18, 'text-anchor': 'middle' }, batch.toLocaleString('en-US')));
  root.append(svg('text', { x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle' }, 'batch'), svg('text', { x: 4, y: 12 }, 'samples/s'));
  for (const method of drawn) {
    const [colour, dash] = methodLook(method.name);
    root.append(svg('path', { class: 'method', 'data-method-line': method.name, style: `stroke: var(--${colour})`, 'stroke-dasharray': dash,
      d: method.points.map(([batch, rate], i) => (i ? 'L' : 'M') + x(batch).toFixed(1) + ' ' + y(rate).toFixed(1)).join('') }));
    for (const [batch, rate, peak] of method.points)
      root.append(named(svg('circle', { class: 'method-point', style: `stroke: var(--${colour})`, cx: x(batch), cy: y(rate), r: 4 }), method.name,
        [['batch', batch], ['samples/s', digits(rate)], ['peak', formatBytes(peak)]]));
  }
  if (plan.fits) root.append(named(svg('circle', { class: 'mine', cx: x(mine[0]), cy: y(mine[1]), r: 8 }), 'this plan', [['batch', mine[0]], ['samples/s', digits(mine[1])]]),
    mineLabel(x(mine[0]), y(mine[1]), drawn.flatMap(method => method.points).map(p => ({ px: x(p[0]), py: y(p[1]) })), left, width - right, top, height - bottom).node);
  return root;
}
