// How the timeline is moved: mouse, touch and keys.

Timeline.prototype.listen = function () {
  const canvas = this.canvas, held = new Map();
  let moved = 0;
  const place = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener('pointerdown', event => {
    held.set(event.pointerId, place(event));
    moved = 0;
    try { canvas.setPointerCapture(event.pointerId); } catch (error) { /* a pointer that is gone */ }
  });
  canvas.addEventListener('pointermove', event => {
    const here = place(event), before = held.get(event.pointerId);
    if (!before) { this.hover(event, here); return; }
    tip.hide();
    const unit = (this.view.to - this.view.from) / (this.width - this.left - 8);
    if (held.size === 2) {
      const other = [...held.entries()].find(([id]) => id !== event.pointerId)[1];
      const was = Math.abs(before[0] - other[0]), is = Math.abs(here[0] - other[0]);
      if (was > 8 && is > 8) this.zoom(was / is, this.timeAt((here[0] + other[0]) / 2));
    } else {
      moved += Math.abs(here[0] - before[0]);
      const shift = (before[0] - here[0]) * unit;
      this.set(this.view.from + shift, this.view.to + shift);
    }
    held.set(event.pointerId, here);
  });
  const release = event => {
    const was = held.delete(event.pointerId);
    if (was && event.type === 'pointerup' && moved < 4) {
      const found = this.at(...place(event));
      if (found) this.pick(found.track, found.index);
    }
  };
  for (const kind of ['pointerup', 'pointercancel']) canvas.addEventListener(kind, release);
  canvas.addEventListener('pointerleave', event => tip.left(event));
  canvas.addEventListener('wheel', event => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.004), this.timeAt(place(event)[0]));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan(event.deltaX / this.width);
    }
  }, { passive: false });
  canvas.addEventListener('dblclick', event => this.zoom(0.4, this.timeAt(place(event)[0])));
  canvas.addEventListener('keydown', event => this.key(event));
};

Timeline.prototype.hover = function (event, [px, py]) {
  const found = this.at(px, py);
  if (!found) { tip.hide(); return; }
  const told = this.describe(found.track, found.index);
  tip.show(event.clientX, event.clientY, el('b', {}, told.title), el('div', {}, told.when), el('div', { class: 'muted' }, told.where));
};

Timeline.prototype.key = function (event) {
  const acts = {
    ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
    '+': () => this.zoom(0.6), '=': () => this.zoom(0.6), '-': () => this.zoom(1 / 0.6),
    '0': () => this.set(0, this.end), Home: () => this.set(0, this.end),
    ArrowUp: () => this.choose(-1, 0), ArrowDown: () => this.choose(1, 0), n: () => this.choose(0, 1), p: () => this.choose(0, -1),
  };
  if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  acts[event.key]();
};

// The track or the task beside the one that is picked; it is brought into view and read out.
Timeline.prototype.choose = function (rows, tasks) {
  if (!this.tracks.length) return;
  let index = this.picked ? this.tracks.indexOf(this.picked.track) : rows ? -rows : 0;
  index = Math.max(0, Math.min(this.tracks.length - 1, index + rows));
  const track = this.tracks[index];
  let i = this.picked && !rows ? this.picked.index + tasks : firstAfter(track, this.picked ? this.picked.track.start[this.picked.index] : this.view.from);
  i = Math.max(0, Math.min(track.count - 1, i));
  const size = this.view.to - this.view.from;
  if (track.start[i] < this.view.from || track.end[i] > this.view.to) this.set(track.start[i] - size / 4, track.start[i] + 3 * size / 4);
  const told = this.pick(track, i);
  tell(`${told.title}, ${told.when}, ${told.where}`);
};
