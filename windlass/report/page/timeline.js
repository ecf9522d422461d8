// The timeline: a canvas that draws what is in view. Where several tasks share a pixel, the pixel has the colour
// of the category that takes most of it, as strong as the share of it that is busy, so that a frame costs the
// same however many tasks there are.

const CATEGORIES = ['forward', 'backward', 'recompute', 'update', 'communication', 'swap', 'other'];
const CATEGORY_OF = { 'forward': 0, 'backward': 1, 'recompute': 2, 'compress': 2, 'decompress': 2, 'update': 3, 'host-update': 3,
  'host update': 3, 'norm': 3, 'collective': 4, 'reduce': 4, 'gather': 4, 'send': 4, 'swap-out': 5, 'swap-in': 5, 'join': 6 };
const CATEGORY_WORDS = { forward: 'forward', backward: 'backward', recompute: 'recompute', update: 'optimizer',
  communication: 'between devices', swap: 'to and from the host', other: 'other' };
const ROW = 24, HEAD = 20, AXIS = 24;

function decodeTrack(track, timeline, categories) {
  const text = atob(track.data), count = track.slices;
  const start = new Float64Array(count), end = new Float64Array(count);
  const label = new Int32Array(count), extra = new Int32Array(count), category = new Uint8Array(count);
  let at = 0, reached = 0;
  const number = () => {
    let value = 0, factor = 1, byte;
    do { byte = text.charCodeAt(at++); value += (byte & 127) * factor; factor *= 128; } while (byte & 128);
    return value;
  };
  for (let i = 0; i < count; i++) {
    start[i] = reached + number();
    reached = end[i] = start[i] + number();
    const code = number();
    label[i] = code - 1;
    if (code === 0) { category[i] = categories[number()]; extra[i] = number(); }
    else { category[i] = categories[timeline.labels[code - 1][0]]; extra[i] = number() - 1; }
  }
  // Busy time up to each slice, by category.
  const busy = CATEGORIES.map((name, c) => {
    if (!category.includes(c)) return null;
    const sums = new Float64Array(count + 1);
    for (let i = 0; i < count; i++) sums[i + 1] = sums[i] + (category[i] === c ? end[i] - start[i] : 0);
    return sums;
  });
  return { team: track.team, lane: track.lane, start, end, label, extra, category, busy, count };
}

// The first slice that ends after a time.
function firstAfter(track, time) {
  let low = 0, high = track.count;
  while (low < high) { const mid = (low + high) >> 1; if (track.end[mid] > time) high = mid; else low = mid + 1; }
  return low;
}
function firstFrom(track, time, low) {
  let high = track.count;
  while (low < high) { const mid = (low + high) >> 1; if (track.start[mid] >= time) high = mid; else low = mid + 1; }
  return low;
}

class Timeline {
  constructor(plan) {
    const data = plan.timeline;
    this.plan = plan;
    this.data = data;
    const categories = data.kinds.map(kind => CATEGORY_OF[kind] === undefined ? 6 : CATEGORY_OF[kind]);
    this.tracks = data.tracks.map(track => decodeTrack(track, data, categories));
    this.end = Math.max(1, data.end);
    this.view = { from: 0, to: this.end };
    this.picked = null;
    this.frames = 0;
    this.lay(false);
  }

  // Where the tracks are. On narrow pages the name of a lane stands above its track.
  lay(narrow) {
    this.narrow = narrow;
    let y = AXIS, team = null;
    this.rows = this.tracks.map(track => {
      if (track.team !== team) { team = track.team; y += HEAD; }
      if (narrow) y += 14;
      const row = { track, y };
      y += ROW;
      return row;
    });
    this.height = y + 6;
  }

  mount() {
    this.canvas = el('canvas', { tabindex: '0', role: 'application', 'aria-label':
      `Timeline of ${this.data.tasks} tasks on ${this.tracks.length} tracks. Left and right pan, plus and minus zoom, 0 shows all, up and down choose a track, n and p go through its tasks.` });
    this.told = el('p', { class: 'told muted' }, 'Drag to pan, Ctrl + wheel or pinch to zoom. Point at a task, or use the keys.');
    const button = (text, label, act) => {
      const node = el('button', { type: 'button', 'aria-label': label, title: label }, text);
      node.addEventListener('click', act);
      return node;
    };
    this.range = el('span', { class: 'muted' });
    const tools = el('div', { class: 'tools' },
      button('+', 'Zoom in', () => this.zoom(0.5)), button('\u2212', 'Zoom out', () => this.zoom(2)),
      button('\u2190', 'Earlier', () => this.pan(-0.25)), button('\u2192', 'Later', () => this.pan(0.25)),
      button('All', 'Show the whole step', () => this.set(0, this.end)), el('span', { class: 'spring' }), this.range);
    const present = CATEGORIES.filter((name, c) => this.tracks.some(track => track.busy[c]));
    const legend = el('ul', { class: 'legend' }, ...present.map(name => el('li', {}, el('i', { class: 'fill-' + name }), CATEGORY_WORDS[name])));
    this.box = el('div', { class: 'timeline' }, el('div', { class: 'timeline-scroll' }, this.canvas));
    this.listen();
    responsive(this.box, () => this.draw());
    return el('div', { 'data-chart': 'timeline' }, legend, tools, this.box, this.told);
  }

  get left() { return this.narrow ? 8 : 130; }
  timeAt(px) { return this.view.from + (px - this.left) / (this.width - this.left - 8) * (this.view.to - this.view.from); }

  set(from, to) {
    const least = Math.min(this.end, 20), size = Math.max(least, Math.min(this.end, to - from));
    from = Math.max(0, Math.min(this.end - size, from));
    this.view = { from, to: from + size };
    this.ask();
  }
  zoom(factor, around) {
    const { from, to } = this.view;
    const centre = around === undefined ? (from + to) / 2 : around;
    this.set(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }
  pan(share) { const size = this.view.to - this.view.from; this.set(this.view.from + share * size, this.view.to + share * size); }
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  colours() {
    const theme = document.documentElement.dataset.theme;
    if (this.known && this.known.theme === theme) return this.known;
    const style = getComputedStyle(document.documentElement);
    const of = name => style.getPropertyValue(name).trim();
    return this.known = { theme, parts: CATEGORIES.map(name => of('--c-' + name)), ink: of('--ink'), muted: of('--muted'), line: of('--line'), soft: of('--soft'), card: of('--card') };
  }

  draw() {
    const scale = Math.min(2, devicePixelRatio || 1);
    const narrow = this.box.clientWidth < 560;
    if (narrow !== this.narrow) this.lay(narrow);
    this.width = this.box.clientWidth - (this.height > 560 ? 15 : 0);
    if (this.width <= 0) return;
    this.canvas.style.height = this.height + 'px';
    const canvas = this.canvas, wide = Math.round(this.width * scale), high = Math.round(this.height * scale);
    if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
    canvas.style.width = this.width + 'px';
    const context = canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const colours = this.colours(), left = this.left, plot = this.width - left - 8;
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.width, this.height);
    const { from, to } = this.view, unit = plot / (to - from), seconds = this.data.quantum_ns / 1e9;
    context.font = '12px system-ui, sans-serif';
    context.textBaseline = 'middle';
    this.drawAxis(context, colours, from, to, unit, left, seconds);
    let team = null;
    for (const row of this.rows) {
      if (row.track.team !== team) {
        team = row.track.team;
        context.fillStyle = colours.ink;
        context.font = '600 12px system-ui, sans-serif';
        context.fillText(team, 8, row.y - HEAD / 2 + 1 - (this.narrow ? 14 : 0), this.width - 16);
        context.font = '12px system-ui, sans-serif';
      }
      context.fillStyle = colours.soft;
      context.fillRect(left, row.y + 1, plot, ROW - 4);
      this.drawTrack(context, colours, row, from, to, unit, left);
      context.fillStyle = colours.muted;
      if (this.narrow) context.fillText(row.track.lane, left, row.y - 6, plot);
      else context.fillText(row.track.lane, 16, row.y + ROW / 2 - 1, left - 24);
    }
    this.range.textContent = `${formatSeconds(from * seconds)} to ${formatSeconds(to * seconds)}`;
    this.frames++;
  }

  drawAxis(context, colours, from, to, unit, left, seconds) {
    const span = (to - from) * seconds;
    const step = (() => { const rough = span / Math.max(2, this.width / 130), power = Math.pow(10, Math.floor(Math.log10(rough)));
      return [1, 2, 5, 10].map(f => f * power).find(s => s >= rough); })();
    context.fillStyle = colours.muted;
    context.strokeStyle = colours.line;
    context.beginPath();
    for (let t = Math.ceil(from * seconds / step) * step; t <= to * seconds; t += step) {
      const x = left + (t / seconds - from) * unit;
      context.moveTo(x, AXIS - 6);
      context.lineTo(x, this.height);
      const text = formatSeconds(Math.abs(t) < step / 2 ? 0 : t);
      if (x + context.measureText(text).width + 3 < this.width) context.fillText(text, x + 3, AXIS / 2);
    }
    context.stroke();
  }

  drawTrack(context, colours, row, from, to, unit, left) {
    const track = row.track, y = row.y + 1, high = ROW - 4;
    let i = firstAfter(track, from);
    // Neighbouring pixels that look the same are drawn at once.
    let runFrom = 0, runTo = 0, runPart = 0, runLevel = 0;
    const flush = () => {
      if (runTo <= runFrom) return;
      context.globalAlpha = runLevel / 5;
      context.fillStyle = colours.parts[runPart];
      context.fillRect(runFrom, y, runTo - runFrom, high);
      context.globalAlpha = 1;
      runTo = runFrom;
    };
    while (i < track.count && track.start[i] < to) {
      const x0 = left + Math.max(0, track.start[i] - from) * unit;
      const x1 = left + (Math.min(track.end[i], to) - from) * unit;
      if (x1 - x0 >= 2) {
        flush();
        context.fillStyle = colours.parts[track.category[i]];
        const gap = x1 - x0 > 5 ? 1 : 0;
        context.fillRect(x0, y, x1 - x0 - gap, high);
        if (this.picked && this.picked.track === track && this.picked.index === i) {
          context.strokeStyle = colours.ink;
          context.lineWidth = 2;
          context.strokeRect(x0 + 1, y + 1, Math.max(2, x1 - x0 - gap - 2), high - 2);
          context.lineWidth = 1;
        }
        if (x1 - x0 > 60) {
          context.fillStyle = colours.card;
          context.save();
          context.beginPath();
          context.rect(x0, y, x1 - x0 - 4, high);
          context.clip();
          context.fillText(this.nameOf(track, i), x0 + 5, y + high / 2 + 1);
          context.restore();
        }
        i++;
        continue;
      }
      // All that begins within this pixel.
      const pixel = Math.floor(x0), until = from + (pixel + 1 - left) / unit;
      const next = Math.max(i + 1, firstFrom(track, until, i));
      let most = -1, part = track.category[i], sum = 0;
      for (let c = 0; c < CATEGORIES.length; c++) {
        if (!track.busy[c]) continue;
        const busy = track.busy[c][next] - track.busy[c][i];
        sum += busy;
        if (busy > most) { most = busy; part = c; }
      }
      const level = Math.max(2, Math.min(5, Math.round(5 * sum * unit)));
      if (runTo !== pixel || part !== runPart || level !== runLevel) {
        flush();
        [runFrom, runPart, runLevel] = [pixel, part, level];
      }
      runTo = pixel + 1;
      i = next;
    }
    flush();
  }

  nameOf(track, i) {
    if (track.label[i] < 0) return `${track.extra[i]} tasks (${CATEGORY_WORDS[CATEGORIES[track.category[i]]]})`;
    return this.data.labels[track.label[i]][1];
  }
  describe(track, i) {
    const seconds = this.data.quantum_ns / 1e9, label = track.label[i];
    const kind = label < 0 ? '' : this.data.kinds[this.data.labels[label][0]] + ' ';
    const micro = label >= 0 && track.extra[i] >= 0 ? `, micro-batch ${track.extra[i]}` : '';
    return { title: kind + this.nameOf(track, i) + micro,
      when: `${formatSeconds((track.end[i] - track.start[i]) * seconds)}, from ${formatSeconds(track.start[i] * seconds)}`,
      where: `${track.team}, ${track.lane}` };
  }
  pick(track, i) {
    this.picked = { track, index: i };
    const told = this.describe(track, i);
    this.told.textContent = `${told.title} - ${told.when} - ${told.where}`;
    this.told.classList.remove('muted');
    this.ask();
    return told;
  }
  at(px, py) {
    const row = this.rows.find(r => py >= r.y && py < r.y + ROW);
    if (!row || px < this.left) return null;
    const slack = 2 / ((this.width - this.left - 8) / (this.view.to - this.view.from)), time = this.timeAt(px);
    const i = firstAfter(row.track, time - slack);
    return i < row.track.count && row.track.start[i] <= time + slack ? { track: row.track, index: i } : null;
  }
}
