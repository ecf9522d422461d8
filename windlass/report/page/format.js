'use strict';
// Numbers and elements. Text from plans is put into the page by textContent alone.

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

function digits(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString('en-US');
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}
function formatBytes(bytes) {
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit < BYTE_UNITS.length - 1) { value /= 1024; unit++; }
  return (unit === 0 ? String(Math.round(value)) : digits(value)) + ' ' + BYTE_UNITS[unit];
}
function formatSeconds(seconds) {
  const size = Math.abs(seconds);
  if (size >= 120) return Math.floor(seconds / 60) + ' min ' + Math.round(seconds % 60) + ' s';
  if (size >= 1 || size === 0) return digits(seconds) + ' s';
  if (size >= 1e-3) return digits(seconds * 1e3) + ' ms';
  if (size >= 1e-6) return digits(seconds * 1e6) + ' us';
  return digits(seconds * 1e9) + ' ns';
}
function formatCount(count) {
  if (count >= 1e12) return digits(count / 1e12) + ' T';
  if (count >= 1e9) return digits(count / 1e9) + ' B';
  if (count >= 1e6) return digits(count / 1e6) + ' M';
  return Math.round(count).toLocaleString('en-US');
}
function formatPercent(share) {
  if (share > 0 && share < 0.0005) return '<0.1 %';
  return (100 * share).toFixed(1) + ' %';
}
function formatBandwidth(rate) { return digits(rate / 1e9) + ' GB/s'; }
function formatDifference(predicted, measured) {
  if (!measured) return '';
  const share = 100 * (predicted - measured) / measured;
  return (share >= 0 ? '+' : '') + share.toFixed(1) + ' %';
}

// An element with attributes, and children that are elements or text.
function el(name, attributes, ...children) { return fill(document.createElement(name), attributes, children); }
function svg(name, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  for (const child of children)
    if (child !== null && child !== undefined)
      node.append(typeof child === 'object' ? child : document.createTextNode(String(child)));
  return node;
}

// Calls draw(width) now and whenever the width of the element changes.
function responsive(element, draw) {
  let last = 0;
  const update = () => {
    const width = Math.floor(element.clientWidth);
    if (width > 0 && width !== last) { last = width; draw(width); }
  };
  new ResizeObserver(update).observe(element);
  requestAnimationFrame(update);
}

// Text as nodes that may break before settings: names of models and strategies are long words.
function breakable(text) {
  return String(text).split(/(?<=[,:])(?=[A-Za-z])/).flatMap((part, i) => i ? [el('wbr'), part] : [part]);
}

// A table with a caption for readers of the screen; columns starting with # are numbers, those with ~ (or ~#) are left out on phones.
// Each cell knows its column's name: tables of class "stacked" have a line a cell on phones, with that before it.
function table(caption, columns, rows, classes) {
  const kinds = columns.map(column => [column.startsWith('~') ? 'aside' : '', /^~?#/.test(column) ? 'n' : ''].filter(Boolean).join(' '));
  const words = columns.map(column => column.replace(/^~?#?/, ''));
  const head = el('tr', {}, ...words.map((word, i) => el('th', { scope: 'col', class: kinds[i] }, word)));
  const body = rows.map((row, r) => el('tr', classes && classes[r] ? { class: classes[r] } : {},
    ...row.map((cell, i) => {
      const made = cell instanceof HTMLTableCellElement ? cell : el('td', { class: kinds[i] || (i === 0 ? 'name' : '') }, cell);
      if (i > 0 && words[i]) made.dataset.column = words[i];
      return made;
    })));
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    el('table', {}, el('caption', { class: 'hidden-text' }, caption), el('thead', {}, head), el('tbody', {}, ...body)));
}

// The same, a line a cell on phones: for words, which do not fit side by side there.
function stacked(caption, columns, rows, classes) {
  const made = table(caption, columns, rows, classes);
  made.classList.add('stacked');
  // Styles that make blocks of rows and cells take what they are from readers of the screen.
  const roles = { table: 'table', thead: 'rowgroup', tbody: 'rowgroup', tr: 'row', th: 'columnheader', td: 'cell' };
  for (const [name, role] of Object.entries(roles)) for (const node of made.querySelectorAll(name)) node.setAttribute('role', role);
  return made;
}

// Whole numbers of 1, 2 or 5 times a power of ten (or of two, for bytes) up to the end of an axis.
function ticks(end, count, binary) {
  if (!(end > 0)) return [0];
  const base = binary ? Math.pow(1024, Math.floor(Math.log(end) / Math.log(1024))) : 1;
  const rough = end / base / Math.max(1, count);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999) * base;
  const list = [];
  for (let t = 0; t <= end * 1.0001; t += step) list.push(t);
  return list;
}

function ticksBetween(begin, end, count) {
  if (!(begin > 0)) return ticks(end, count);
  const list = ticks(end - begin, count), step = list.length > 1 ? list[1] : end - begin, made = [];
  for (let t = Math.ceil(begin / step) * step; t <= end; t += step) made.push(t);
  return made;
}

// The text beside the pointer.
const tip = {
  node: null,
  show(x, y, ...content) {
    this.node = this.node || document.getElementById('tip');
    this.node.replaceChildren(...content);
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    this.node.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 6)) + 'px';
    this.node.style.top = Math.max(4, y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16) + 'px';
  },
  hide() { if (this.node) this.node.hidden = true; },
  // A finger that is lifted leaves as well: what it asked for stays until the next touch.
  left(event) { if (event.pointerType !== 'touch') this.hide(); },
};
addEventListener('pointerdown', () => tip.hide(), true);
addEventListener('scroll', () => tip.hide(), { passive: true });
function tipRow(name, value, kind) {
  return el('div', { class: 'row' },
    el('span', { class: 'cut' }, kind ? el('i', { class: 'dot fill-' + kind }) : null, name), el('span', {}, value));
}
function tell(text) { document.getElementById('live').textContent = text; }
