// Where the time goes, and time against memory.

const TIME_PARTS = ['compute', 'recompute', 'communication', 'swap', 'update', 'bubble'];
const TIME_WORDS = { compute: 'forward and backward', recompute: 'recompute', communication: 'waits for other devices',
  swap: 'waits for the host', update: 'optimizer', bubble: 'idle', host: 'host, beside all tasks' };

function drawBreakdown(plan) {
  const whole = plan.step_time || 1;
  const shown = TIME_PARTS.filter(part => plan.breakdown.some(row => row[part] > 0));
  const legend = el('ul', { class: 'legend' }, ...shown.map(part =>
    el('li', {}, el('i', { class: 'fill-' + part }), TIME_WORDS[part])));
  const bars = el('div', { class: 'bars' });
  for (const row of plan.breakdown) {
    const parts = shown.filter(part => row[part] > 0);
    const text = parts.map(part => TIME_WORDS[part] + ' ' + formatPercent(row[part] / whole)).join(', ');
    const bar = el('div', { class: 'bar', role: 'img', 'aria-label': row.name + ': ' + text, tabindex: '0' });
    for (const part of parts) {
      const piece = el('span', { class: 'fill-' + part, 'data-part': part, 'data-seconds': row[part] });
      piece.style.width = (100 * row[part] / whole) + '%';
      bar.append(piece);
    }
    const show = event => {
      const box = bar.getBoundingClientRect();
      tip.show(event.clientX || box.left, event.clientY || box.top, el('b', {}, row.name),
        ...parts.map(part => tipRow(TIME_WORDS[part], formatSeconds(row[part]) + ', ' + formatPercent(row[part] / whole), part)));
    };
    for (const kind of ['pointermove', 'pointerdown', 'focus']) bar.addEventListener(kind, show);
    bar.addEventListener('pointerleave', event => tip.left(event));
    bar.addEventListener('blur', () => tip.hide());
    bars.append(el('span', { class: 'name' }, row.name), bar);
  }
  const mean = plan.breakdown[0];
  const rows = shown.filter(part => mean[part] > 0).map(part => [el('td', { class: 'name' }, el('i', { class: 'dot fill-' + part }), TIME_WORDS[part]),
    formatSeconds(mean[part]), formatPercent(mean[part] / whole)]);
  if (plan.overhead > 0) rows.push([TIME_WORDS.host, formatSeconds(plan.overhead), formatPercent(plan.overhead / whole)]);
  return el('div', { class: 'side wide' }, el('div', {}, legend, bars),
    table('Where the time of a step goes', ['', '#seconds', '#of the step'], rows));
}

function specCell(number, row) { return el('td', { class: 'name' }, number, ...breakable(baselineName(row))); }
function baselineName(row) { return row.tuned ? row.name + ' (tuned)' : row.name; }
function isPossible(row) { return !row.why && row.step_time > 0; }
// Those that fit come first, the fastest of them at the top; then those that do not fit, and those that are impossible.
function sortedBaselines(plan) {
  const rank = row => !isPossible(row) ? 2 : row.fits ? 0 : 1;
  return [...plan.baselines].sort((a, b) => rank(a) - rank(b) || (rank(a) < 2 ? a.step_time - b.step_time : 0));
}

// Time against memory: what the search found, this plan, and what a user would have done.
function frontierPoints(plan) {
  const device = plan.memories.filter(memory => !memory.host);
  const peak = Math.max(0, ...device.map(memory => memory.peak));
  const limit = Math.min(...device.map(memory => memory.limit));
  const points = sortedBaselines(plan).filter(isPossible)
    .map((row, i) => ({ name: baselineName(row), x: row.peak, y: row.step_time, fits: row.fits, number: String(i + 1) }));
  return { mine: { name: 'this plan', x: peak, y: plan.step_time }, limit, points };
}

function drawFrontier(plan, other) {
  const { mine, limit, points } = frontierPoints(plan);
  if (other) points.push({ ...frontierPoints(other).mine, name: other.path, fits: other.fits, number: 'B' });
  const holder = el('div', { class: 'chart', 'data-chart': 'frontier' });
  responsive(holder, width => holder.replaceChildren(frontierSvg(plan, mine, limit, points, width)));
  const rows = [[el('td', { class: 'name' }, ...breakable('this plan: ' + plan.strategy)), formatSeconds(mine.y), formatBytes(mine.x),
    el('td', { class: plan.fits ? 'good' : 'bad' }, plan.fits ? 'fits' : 'does not fit')]];
  if (other) {
    const point = points[points.length - 1];
    rows.push(['B  ' + other.path, formatSeconds(point.y), formatBytes(point.x),
      el('td', { class: other.fits ? 'good' : 'bad' }, other.fits ? 'fits' : 'does not fit')]);
  }
  let number = 0;
  for (const row of sortedBaselines(plan)) {
    if (!isPossible(row)) {
      rows.push([specCell('', row), '-', '-', el('td', {}, row.why || 'not possible')]);
      continue;
    }
    number++;
    rows.push([specCell(number + '  ', row), formatSeconds(row.step_time), formatBytes(row.peak),
      el('td', { class: row.fits ? 'good' : 'bad' }, row.fits ? 'fits' : 'does not fit')]);
  }
  const listed = table('Strategies: time of a step and peak of the fullest device', ['strategy', '#step', '#peak', ''], rows, ['me']);
  const notes = [];
  if (!plan.frontier.length) notes.push('The plan file carries no frontier: "windlass plan" writes one where its search simulates several limits.');
  if (plan.no_baselines) notes.push('Usual strategies are ' + plan.no_baselines + '.');
  listed.classList.add('tall');
  return el('div', { class: 'side half' }, el('div', {}, holder, ...notes.map(note => el('p', { class: 'lead' }, note))), listed);
}

function frontierSvg(plan, mine, limit, points, width) {
  const height = Math.round(Math.min(380, Math.max(260, width * 0.55)));
  const left = 62, right = 16, top = 20, bottom = 42;
  const all = [mine, ...points, ...plan.frontier.map(([x, y]) => ({ x, y }))];
  const times = all.map(p => p.y).sort((a, b) => a - b);
  // What is many times slower than the rest would flatten all the others.
  const slowest = Math.min(times[times.length - 1], 4 * Math.max(mine.y, times[Math.floor(times.length / 2)]));
  const endX = Math.min(Math.max(...all.map(p => p.x), limit <= 3 * mine.x ? limit : 0), 4 * Math.max(mine.x, Math.min(limit, 3 * mine.x))) * 1.08;
  const endY = slowest * 1.12;
  const x = bytes => left + (width - left - right) * Math.min(1, bytes / endX);
  const y = seconds => height - bottom - (height - top - bottom) * Math.min(1, seconds / endY);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img',
    'aria-label': 'Step time against memory of the fullest device; the table beside has the numbers' });
  for (const t of ticks(endY, 5)) {
    root.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      svg('text', { x: left - 8, y: y(t) + 4, 'text-anchor': 'end' }, formatSeconds(t)));
  }
  for (const t of ticks(endX, width < 500 ? 3 : 6, true))
    root.append(svg('text', { x: x(t), y: height - bottom + 18, 'text-anchor': 'middle' }, formatBytes(t)));
  root.append(svg('text', { x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle' }, 'peak of the fullest device'),
    svg('text', { x: 4, y: 12 }, 'step'));
  if (limit <= endX) root.append(svg('line', { class: 'limit', x1: x(limit), x2: x(limit), y1: top, y2: height - bottom }),
    svg('text', { class: 'limit-text', x: x(limit) + (x(limit) < left + 100 ? 6 : -6), y: top + 10, 'text-anchor': x(limit) < left + 100 ? 'start' : 'end' }, 'limit ' + formatBytes(limit)));
  if (plan.frontier.length) {
    let path = '';
    plan.frontier.forEach(([bytes, seconds], i) => { path += i ? `H${x(bytes)}V${y(seconds)}` : `M${x(bytes)} ${y(seconds)}`; });
    // Beyond the limit nothing was searched for.
    const edge = Math.max(x(plan.frontier[plan.frontier.length - 1][0]), Math.min(x(endX), x(limit)));
    root.append(svg('path', { class: 'frontier-area', d: path + `H${edge}V${top}H${x(plan.frontier[0][0])}Z` }),
      svg('path', { class: 'frontier', d: path + `H${edge}` }));
    for (const [bytes, seconds] of plan.frontier)
      root.append(named(svg('circle', { class: 'knee', cx: x(bytes), cy: y(seconds), r: 4 }),
        'found by the search', [['step', formatSeconds(seconds)], ['limit', formatBytes(bytes)]]));
  }
  for (const point of points) {
    const mark = svg('g', { 'data-name': point.name }, svg('circle', { class: 'base' + (point.fits ? '' : ' misfit'), cx: x(point.x), cy: y(point.y), r: 5 }));
    root.append(named(mark, point.name, [['step', formatSeconds(point.y)], ['peak', formatBytes(point.x)], ['', point.fits ? 'fits' : 'does not fit']]));
  }
  const marks = [{ x: mine.x, y: mine.y, number: '' }, ...points].map(p => ({ px: x(p.x), py: y(p.y), number: p.number }));
  const label = mineLabel(x(mine.x), y(mine.y), marks.slice(1), left, width - right, top, height - bottom);
  root.append(...numberLabels(marks, label.box, left, width - right, top, height - bottom));
  root.append(named(svg('g', { 'data-name': 'this plan' }, svg('circle', { class: 'mine', cx: x(mine.x), cy: y(mine.y), r: 9 })), 'this plan',
    [['step', formatSeconds(mine.y)], ['peak', formatBytes(mine.x)]]));
  root.append(label.node);
  return root;
}

// "this plan" beside its mark, where it covers least of the others, and the room it takes.
function mineLabel(px, py, marks, left, right, top, bottom) {
  const wide = 58, high = 14;
  let best = null;
  for (const [dx, dy] of [[13, 17], [-13, 17], [13, -11], [-13, -11], [14, 4], [-14, 4]]) {
    const from = dx > 0 ? px + dx : px + dx - wide, box = [from, py + dy - high + 3, from + wide, py + dy + 3];
    const outside = box[0] < left || box[2] > right || box[1] < top || box[3] > bottom;
    const covered = marks.filter(mark => mark.px > box[0] - 5 && mark.px < box[2] + 5 && mark.py > box[1] - 5 && mark.py < box[3] + 5).length;
    const cost = covered + (outside ? 100 : 0);
    if (!best || cost < best.cost) best = { cost, box, x: px + dx, y: py + dy, anchor: dx > 0 ? 'start' : 'end' };
  }
  const [x1, y1, x2, y2] = best.box;
  return { box: [x1 - 4, y1, x2 + 4, y2], node: svg('text', { class: 'strong haloed', x: best.x, y: best.y, 'text-anchor': best.anchor }, 'this plan') };
}

// Numbers beside marks, one label for those that lie together; where there is no room at the mark, a line leads to it.
function numberLabels(marks, reserved, left, right, top, bottom) {
  const places = [];
  for (const mark of marks) {
    const near = places.find(place => Math.hypot(place.px - mark.px, place.py - mark.py) < 7);
    if (near && near.numbers.length && mark.number) near.numbers.push(mark.number);
    else places.push({ ...mark, numbers: mark.number ? [mark.number] : [] });
  }
  const taken = places.map(place => [place.px - 6, place.py - 6, place.px + 6, place.py + 6]).concat([reserved]), made = [];
  const over = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  for (const place of places) {
    if (!place.numbers.length) continue;
    const text = place.numbers.join(' '), wide = 6.6 * text.length + 2, high = 12;
    let best = null;
    for (const far of [8, 18, 30, 44, 60, 78]) {
      for (const angle of [0, 180, 270, 90, 315, 225, 45, 135]) {
        const cx = place.px + Math.cos(angle * Math.PI / 180) * (far + wide / 2), cy = place.py + Math.sin(angle * Math.PI / 180) * (far + 4);
        const box = [cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2];
        if (box[0] < left || box[2] > right || box[1] < top - 8 || box[3] > bottom || taken.some(other => over(box, other))) continue;
        best = { box, far };
        break;
      }
      if (best) break;
    }
    if (!best) continue;
    taken.push(best.box);
    const cx = (best.box[0] + best.box[2]) / 2, cy = (best.box[1] + best.box[3]) / 2;
    if (best.far > 8) made.push(svg('line', { class: 'lead-line', x1: place.px, y1: place.py, x2: Math.max(best.box[0], Math.min(place.px, best.box[2])), y2: Math.max(best.box[1], Math.min(place.py, best.box[3])) }));
    made.push(svg('text', { class: 'number', x: cx, y: cy + 4 }, text));
  }
  return made;
}

function named(mark, name, rows) {
  mark.setAttribute('tabindex', '0');
  mark.setAttribute('role', 'img');
  mark.setAttribute('aria-label', name + ': ' + rows.map(row => row.join(' ')).join(', '));
  const show = event => {
    const box = mark.getBoundingClientRect();
    tip.show(event.clientX || box.right, event.clientY || box.bottom, el('b', {}, name), ...rows.map(row => tipRow(row[0], row[1])));
  };
  for (const kind of ['pointermove', 'pointerdown', 'focus']) mark.addEventListener(kind, show);
  mark.addEventListener('pointerleave', event => tip.left(event));
  mark.addEventListener('blur', () => tip.hide());
  return mark;
}

// A curve over the steps of a run; `near`: its axis begins near the least value, else at zero.
function drawCurve(label, points, format, near) {
  const holder = el('div', { class: 'chart' });
  responsive(holder, width => {
    const height = 180, left = 62, right = 12, top = 12, bottom = 26;
    const lastX = Math.max(...points.map(p => p[0]), 1), firstX = Math.min(...points.map(p => p[0]));
    const values = points.map(p => p[1]), least = Math.min(...values), most = Math.max(...values);
    const beginY = near ? least - Math.max(0.1 * (most - least), 1e-3 * Math.abs(least)) : 0;
    const endY = near ? most + Math.max(0.1 * (most - least), 1e-3 * Math.abs(most)) : most * 1.1 || 1;
    const x = v => left + (width - left - right) * (lastX > firstX ? (v - firstX) / (lastX - firstX) : 0.5);
    const y = v => height - bottom - (height - top - bottom) * Math.max(0, v - beginY) / (endY - beginY || 1);
    const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label':
      `${label}: from ${format(points[0][1])} at step ${points[0][0]} to ${format(points[points.length - 1][1])} at step ${lastX}` });
    for (const t of ticksBetween(beginY, endY, 4)) root.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      svg('text', { x: left - 8, y: y(t) + 4, 'text-anchor': 'end' }, format(t)));
    root.append(svg('path', { class: 'line', d: points.map((p, i) => (i ? 'L' : 'M') + x(p[0]) + ' ' + y(p[1])).join('') }));
    if (points.length < 40) for (const p of points) root.append(svg('circle', { class: 'knee', cx: x(p[0]), cy: y(p[1]), r: 3 }));
    root.append(svg('text', { x: left, y: height - 6 }, 'step ' + firstX), svg('text', { x: width - right, y: height - 6, 'text-anchor': 'end' }, lastX));
    holder.replaceChildren(root);
  });
  return el('div', {}, el('h3', {}, label), holder);
}
