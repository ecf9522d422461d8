// What fills each memory over the step.

const MEMORY_PARTS = ['weights', 'optimizer', 'gradients', 'activations', 'other'];
const MEMORY_WORDS = { weights: 'weights', optimizer: 'optimizer state', gradients: 'gradients',
  activations: 'kept for the backward pass', other: 'transient, communication, workspace' };

function memoryLegend() {
  return el('ul', { class: 'legend' }, ...MEMORY_PARTS.map(part =>
    el('li', {}, el('i', { class: 'fill-' + part }), MEMORY_WORDS[part])));
}

function drawMemory(plan, memory) {
  const holder = el('div', { class: 'chart', 'data-chart': 'memory', 'data-memory': memory.name });
  const chart = { plan, memory, holder, at: -1 };
  responsive(holder, width => memorySvg(chart, width));
  const of = memory.count > 1 ? (memory.host ? `, each of ${memory.count} hosts` : `, each of ${memory.count} devices`) : '';
  const when = memory.peak_task ? `at ${formatSeconds(memory.peak_time)}, in ${memory.peak_task}` : 'at the start of the step';
  const parts = MEMORY_PARTS.filter(part => memory.at_peak[part] > 0);
  return el('div', {},
    el('h3', {}, memory.name + of, el('span', { class: 'muted' }, ` - peak ${formatBytes(memory.peak)} of ${formatBytes(memory.limit)}`)),
    holder,
    el('details', {}, el('summary', {}, 'What is alive at the peak'),
      el('p', { class: 'lead' }, when + ': ' + parts.map(part => `${MEMORY_WORDS[part]} ${formatBytes(memory.at_peak[part])}`).join(', ') + '.'),
      table('Largest at the peak of ' + memory.name, ['tensor', 'kind', '#buffers', '#bytes'],
        memory.largest.map(t => [t.name, t.kind, t.buffers, formatBytes(t.bytes)]))));
}

// The words of the limit, on ground of their own where they lie on what is drawn.
function plate(x, y, start, text) {
  const wide = 7.4 * text.length + 8;
  return [svg('rect', { class: 'plate', x: start ? x - 4 : x - wide + 4, y: y - 12, width: wide, height: 16, rx: 3 }),
    svg('text', { class: 'limit-text', x, y, 'text-anchor': start ? 'start' : 'end' }, text)];
}

function memorySvg(chart, width) {
  const { plan, memory, holder } = chart;
  const curve = memory.curve, times = curve.times_ns;
  const height = 230, left = 62, right = 10, top = 14, bottom = 26;
  const near = memory.limit <= 2.2 * memory.peak;
  const endY = (near ? Math.max(memory.limit, memory.peak) : memory.peak) * 1.06 || 1;
  const endX = Math.max(plan.timeline.end * plan.timeline.quantum_ns, 1);
  const x = ns => left + (width - left - right) * Math.min(1, ns / endX);
  const y = bytes => height - bottom - (height - top - bottom) * bytes / endY;
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, tabindex: '0', role: 'img',
    'aria-label': `Memory of ${memory.name} over the step: peak ${formatBytes(memory.peak)} of ${formatBytes(memory.limit)} at ${formatSeconds(memory.peak_time)}. Arrow keys move along, Enter goes to the peak.` });
  for (const t of ticks(endY, 4, true))
    root.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      svg('text', { x: left - 8, y: y(t) + 4, 'text-anchor': 'end' }, formatBytes(t)));
  for (const t of ticks(endX / 1e9, width < 260 ? 3 : 5).slice(1))
    root.append(svg('text', { x: Math.min(x(t * 1e9), width - right - 14), y: height - 8, 'text-anchor': 'middle' }, formatSeconds(t)));
  const base = new Array(times.length).fill(0);
  for (const part of MEMORY_PARTS) {
    if (!curve[part].some(v => v > 0)) continue;
    let upper = '', lower = '';
    for (let i = 0; i < times.length; i++) {
      const from = x(times[i]).toFixed(1), to = x(i + 1 < times.length ? times[i + 1] : endX).toFixed(1);
      const high = y((base[i] + curve[part][i]) * curve.unit).toFixed(1), low = y(base[i] * curve.unit).toFixed(1);
      upper += `${i ? 'L' : 'M'}${from} ${high}H${to}`;
      lower = `L${to} ${low}H${from}` + lower;
      base[i] += curve[part][i];
    }
    root.append(svg('path', { class: 'fill-' + part, 'data-part': part, d: upper + lower + 'Z' }));
  }
  const peakX = x(memory.peak_time * 1e9);
  // Its words stand where the mark of the peak does not.
  const atLeft = peakX > left + 120 || peakX > (left + width - right) / 2;
  if (near)
    root.append(svg('line', { class: 'limit-halo', x1: left, x2: width - right, y1: y(memory.limit), y2: y(memory.limit) }),
      svg('line', { class: 'limit', x1: left, x2: width - right, y1: y(memory.limit), y2: y(memory.limit) }),
      ...plate(atLeft ? left + 8 : width - right - 4, y(memory.limit) + 15, atLeft, 'limit ' + formatBytes(memory.limit)));
  else
    root.append(svg('text', { class: 'limit-text', x: width - right, y: 11, 'text-anchor': 'end' }, `limit ${formatBytes(memory.limit)}, above the chart`));
  root.append(svg('path', { class: 'mine', 'data-peak': memory.peak, d: `M${peakX} ${y(memory.peak) - 2}l-6 -9h12z` }));
  const cursor = svg('line', { class: 'cursor', y1: top, y2: height - bottom, visibility: 'hidden' });
  root.append(cursor);
  root.append(svg('line', { class: 'axis', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));

  const total = i => MEMORY_PARTS.reduce((sum, part) => sum + curve[part][i], 0) * curve.unit;
  let peakAt = 0;
  for (let i = 0; i < times.length; i++) if (total(i) > total(peakAt)) peakAt = i;
  const show = (i, clientX, clientY) => {
    chart.at = i;
    const cx = i === peakAt ? peakX : x(times[i]);
    cursor.setAttribute('x1', cx);
    cursor.setAttribute('x2', cx);
    cursor.setAttribute('visibility', 'visible');
    const peak = i === peakAt;
    const rows = MEMORY_PARTS.filter(part => curve[part][i] > 0)
      .map(part => tipRow(MEMORY_WORDS[part], formatBytes(curve[part][i] * curve.unit), part));
    if (peak) rows.push(el('b', {}, 'largest'), ...memory.largest.slice(0, 6).map(t =>
      tipRow(t.name + (t.buffers > 1 ? ' x ' + t.buffers : ''), formatBytes(t.bytes))));
    tip.show(clientX, clientY, el('b', {}, (peak ? 'peak, ' : '') + formatBytes(peak ? memory.peak : total(i)) + ' at ' +
      formatSeconds(peak ? memory.peak_time : times[i] / 1e9)), ...rows);
  };
  const indexAt = px => {
    const ns = (px - left) / (width - left - right) * endX;
    let low = 0, high = times.length - 1;
    while (low < high) { const mid = (low + high + 1) >> 1; if (times[mid] <= ns) low = mid; else high = mid - 1; }
    return Math.abs(px - peakX) < 7 ? peakAt : low;
  };
  if (times.length) {
    for (const kind of ['pointermove', 'pointerdown']) root.addEventListener(kind, event => {
      const box = root.getBoundingClientRect();
      show(indexAt((event.clientX - box.left) * width / box.width), event.clientX, event.clientY);
    });
    root.addEventListener('keydown', event => {
      const step = Math.max(1, Math.round(times.length / 60));
      if (event.key === 'ArrowRight') chart.at = Math.min(times.length - 1, chart.at + step);
      else if (event.key === 'ArrowLeft') chart.at = Math.max(0, chart.at - step);
      else if (event.key === 'Enter') chart.at = peakAt;
      else return;
      event.preventDefault();
      const box = root.getBoundingClientRect();
      show(chart.at, box.left + x(times[chart.at]) * box.width / width, box.top + 40);
      tell(`${formatSeconds(times[chart.at] / 1e9)}: ${formatBytes(total(chart.at))}`);
    });
  }
  const hide = () => { cursor.setAttribute('visibility', 'hidden'); tip.hide(); };
  root.addEventListener('pointerleave', event => { if (event.pointerType !== 'touch') hide(); });
  root.addEventListener('blur', hide);
  holder.replaceChildren(root);
}
