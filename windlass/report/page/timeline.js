// The timeline: a canvas that draws what is in view. Where several tasks share a pixel, the pixel has the colour
// of the category that takes most of it, as strong as the share of it that is busy. A frame looks at each pixel of
// the tracks in view once and puts a track on the canvas in one piece, so that it costs the same however many tasks
// there are: `steps` counts what it looked at.

const CATEGORIES = ['forward', 'backward', 'recompute', 'update', 'communication', 'swap', 'other'];
const CATEGORY_OF = { 'forward': 0, 'backward': 1, 'recompute': 2, 'compress': 2, 'decompress': 2, 'update': 3, 'host-update': 3,
  'host update': 3, 'norm': 3, 'collective': 4, 'reduce': 4, 'gather': 4, 'send': 4, 'swap-out': 5, 'swap-in': 5, 'join': 6 };
const CATEGORY_WORDS = { forward: 'forward', backward: 'backward', recompute: 'recompute', update: 'optimizer',
  communication: 'between devices', swap: 'to and from the host', other: 'other' };
const ROW = 24, HEAD = 20, AXIS = 24, NAME = 14, MOST_HEIGHT = 560;
const LEVELS = 5;  // of how busy a pixel is

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
// The first from `low` on that starts at a time or later, which is near: steps double until they are beyond.
function firstFrom(track, time, low) {
  let reach = 1;
  while (low + reach < track.count && track.start[low + reach] < time) reach *= 2;
  let high = Math.min(track.count, low + reach);
  low += reach >> 1;
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
    this.frames = this.steps = 0;
    this.lay(false);
  }

  // Where the tracks are. On narrow pages the name of a lane stands above its track.
  lay(narrow) {
    this.narrow = narrow;
    let y = AXIS, team = null;
    this.rows = this.tracks.map(track => {
      if (track.team !== team) { team = track.team; y += HEAD; }
      if (narrow) y += NAME;
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
    this.space = el('div', {}, this.canvas);
    this.scroll = el('div', { class: 'timeline-scroll' }, this.space);
    this.scroll.style.maxHeight = MOST_HEIGHT + 'px';
    this.scroll.addEventListener('scroll', () => { this.top = this.scroll.scrollTop; this.ask(); });
    this.top = 0;
    this.box = el('div', { class: 'timeline' }, this.scroll);
    this.strip = document.createElement('canvas');
    this.listen();
    responsive(this.box, width => { this.fit(width); this.draw(); });
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
    const style = getComputedStyle(document.documentElement), context = this.strip.getContext('2d');
    const of = name => style.getPropertyValue(name).trim();
    const rgb = name => {
      context.fillStyle = of(name);  // which reads as #rrggbb
      return [1, 3, 5].map(at => parseInt(context.fillStyle.slice(at, at + 2), 16));
    };
    const pixel = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    const ground = rgb('--soft'), shades = new Uint32Array(CATEGORIES.length * (LEVELS + 1));
    CATEGORIES.forEach((name, c) => {
      const full = rgb('--c-' + name);
      for (let level = 0; level <= LEVELS; level++)
        shades[c * (LEVELS + 1) + level] = pixel(full.map((value, i) => Math.round(ground[i] + (value - ground[i]) * level / LEVELS)));
    });
    return this.known = { theme, shades, idle: pixel(ground), ink: of('--ink'), muted: of('--muted'), line: of('--line'), card: of('--card') };
  }

  // The canvas is as high as what can be seen of it; the rest is scrolled to.
  fit(width) {
    const narrow = width < 560, scale = Math.min(2, devicePixelRatio || 1);
    if (narrow !== this.narrow) this.lay(narrow);
    this.scale = scale;
    this.width = width - (this.height > MOST_HEIGHT ? 15 : 0);
    this.seen = Math.min(this.height, MOST_HEIGHT);
    const canvas = this.canvas;
    canvas.width = Math.max(1, Math.round(this.width * scale));
    canvas.height = Math.round(this.seen * scale);
    canvas.style.width = this.width + 'px';
    canvas.style.height = this.seen + 'px';
    this.space.style.height = this.height + 'px';
    this.strip.width = Math.max(1, Math.round((this.width - this.left - 8) * scale));
    this.strip.height = Math.max(1, Math.min(this.rows.length, Math.ceil(MOST_HEIGHT / ROW) + 3));
    this.pixels = this.strip.getContext('2d').createImageData(this.strip.width, this.strip.height);
  }

  draw() {
    if (!(this.width > this.left + 8)) return;
    const context = this.canvas.getContext('2d'), scale = this.scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const colours = this.colours(), left = this.left, plot = this.width - left - 8;
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.width, this.seen);
    const { from, to } = this.view, seconds = this.data.quantum_ns / 1e9;
    context.font = '12px system-ui, sans-serif';
    context.textBaseline = 'middle';
    const above = HEAD + (this.narrow ? NAME : 0);
    const rows = this.rows.filter(row => row.y + ROW > this.top && row.y - above < this.top + this.seen);
    context.translate(0, -this.top);
    this.drawAxis(context, colours, from, to, plot / (to - from), left, seconds);
    this.steps = 0;
    const named = rows.map((row, i) => this.paint(row.track, i, colours, from, to));
    this.strip.getContext('2d').putImageData(this.pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    rows.forEach((row, i) => {
      context.drawImage(this.strip, 0, i, this.strip.width, 1, left, row.y + 1, plot, ROW - 4);
      this.drawNames(context, colours, row, named[i], left);
    });
    let team = null;
    for (const row of rows) {
      if (row.track.team === team) continue;
      team = row.track.team;
      const first = this.rows.find(other => other.track.team === team);
      context.fillStyle = colours.ink;
      context.font = '600 12px system-ui, sans-serif';
      context.fillText(team, 8, first.y - HEAD / 2 + 1 - (this.narrow ? NAME : 0), this.width - 16);
      context.font = '12px system-ui, sans-serif';
    }
    context.fillStyle = colours.muted;
    for (const row of rows) {
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

  // A track as a line of pixels. Returns the slices that are to be named or are picked, with their places.
  paint(track, line, colours, from, to) {
    const wide = this.strip.width, scale = this.scale, unit = wide / (to - from), named = [];
    const shades = colours.shades, pixels = new Uint32Array(this.pixels.data.buffer, 4 * line * wide, wide);
    pixels.fill(colours.idle);
    let i = firstAfter(track, from), steps = 0;
    while (i < track.count && track.start[i] < to) {
      steps++;
      const x0 = Math.max(0, track.start[i] - from) * unit, x1 = (Math.min(track.end[i], to) - from) * unit;
      if (x1 - x0 >= 2) {
        const gap = x1 - x0 > 5 * scale ? scale : 0;
        pixels.fill(shades[track.category[i] * (LEVELS + 1) + LEVELS], Math.round(x0), Math.max(Math.round(x0) + 1, Math.round(x1 - gap)));
        const picked = this.picked && this.picked.track === track && this.picked.index === i;
        if (picked || x1 - x0 > 60 * scale) named.push([i, x0 / scale, (x1 - gap) / scale, picked]);
        i++;
        continue;
      }
      // All that begins within this pixel.
      const at = Math.min(wide - 1, Math.floor(x0)), next = Math.max(i + 1, firstFrom(track, from + (at + 1) / unit, i));
      let most = -1, part = track.category[i], sum = 0;
      for (let c = 0; c < CATEGORIES.length; c++) {
        if (!track.busy[c]) continue;
        const busy = track.busy[c][next] - track.busy[c][i];
        sum += busy;
        if (busy > most) { most = busy; part = c; }
      }
      pixels[at] = shades[part * (LEVELS + 1) + Math.max(2, Math.min(LEVELS, Math.round(LEVELS * sum * unit)))];
      i = next;
    }
    this.steps += steps;
    return named;
  }

  drawNames(context, colours, row, named, left) {
    const y = row.y + 1, high = ROW - 4;
    for (const [i, x0, x1, picked] of named) {
      if (picked) {
        context.strokeStyle = colours.ink;
        context.lineWidth = 2;
        context.strokeRect(left + x0 + 1, y + 1, Math.max(2, x1 - x0 - 2), high - 2);
        context.lineWidth = 1;
      }
      if (x1 - x0 <= 60) continue;
      context.fillStyle = colours.card;
      context.save();
      context.beginPath();
      context.rect(left + x0, y, x1 - x0 - 4, high);
      context.clip();
      context.fillText(this.nameOf(row.track, i), left + x0 + 5, y + high / 2 + 1);
      context.restore();
    }
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
    const row = this.rows.find(r => r.track === track);
    if (row.y < this.top) this.scroll.scrollTop = row.y - AXIS;
    else if (row.y + ROW > this.top + this.seen) this.scroll.scrollTop = row.y + ROW + 6 - this.seen;
    this.ask();
    return told;
  }
  at(px, py) {
    const row = this.rows.find(r => py + this.top >= r.y && py + this.top < r.y + ROW);
    if (!row || px < this.left) return null;
    const slack = 2 / ((this.width - this.left - 8) / (this.view.to - this.view.from)), time = this.timeAt(px);
    const i = firstAfter(row.track, time - slack);
    return i < row.track.count && row.track.start[i] <= time + slack ? { track: row.track, index: i } : null;
  }
}
