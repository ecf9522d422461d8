// The strategy layer by layer, links, a run beside its prediction, what the numbers rest on.

function savedText(saved) {
  const parts = Object.entries(saved).filter(([, bytes]) => bytes > 0).map(([action, bytes]) => `${action} ${formatBytes(bytes)}`);
  return parts.length ? parts.join(', ') : '-';
}

function drawLayers(plan) {
  if (plan.packs)
    return stacked('Packs of layers in the order they run', ['pack', 'from, to', 'pass', '#device of each replica', '#samples at a time', 'backward pass starts from'],
      plan.layers.map(row => [row.name, el('td', { class: 'words' }, row.ops), row.pass, row.device, row.microbatch, row.action || '-']));
  const staged = plan.layers.some(row => row.stage > 0);
  const columns = ['layers', '#count', 'split over devices', 'saved for the backward pass', 'weights'];
  const cells = (row, name) => [name, row.layers, row.split, savedText(row.saved), row.weights.join('; ') || '-'];
  // Rows of a second and third level are made when they are first asked for: models have thousands of ops.
  const folded = (label, make) => {
    const details = el('details', { class: 'flat' }, el('summary', {}, label));
    details.addEventListener('toggle', () => { if (details.childElementCount < 2) details.append(make()); });
    return el('td', { class: 'name' }, details);
  };
  const ops = part => stacked('Ops of ' + part.name, ['op', 'kind', 'split', 'saved', 'weights'],
    part.ops.map(op => [op.name, op.kind, op.split, savedText(op.saved), op.weights.join('; ') || '-']));
  const partName = part => part.layers > 1 ? `${part.name}, ${part.layers} alike` : part.name;
  const rows = plan.layers.map(row => {
    const label = partName(row).replace(' alike', row.parts.length > 1 ? ` layers in ${row.parts.length} variants` : ' alike');
    const only = row.parts.length === 1 && row.parts[0].ops.length === 1;
    const name = only ? el('td', { class: 'name' }, label) : folded(label, () => row.parts.length === 1 ? ops(row.parts[0])
      : stacked('Variants of ' + row.name, columns, row.parts.map(part => cells(part, folded(partName(part), () => ops(part))))));
    const made = cells(row, name);
    if (staged) made.splice(1, 0, `${row.stage} (group ${row.group})`);
    return made;
  });
  const heads = columns.slice();
  if (staged) heads.splice(1, 0, 'stage');
  const made = stacked('Strategy layer by layer', heads, rows);
  made.classList.add('tall');
  return made;
}

function drawLinks(plan) {
  if (!plan.links.length) return el('p', { class: 'lead' }, 'Nothing crosses a link in this step.');
  return table('Links by utilisation', ['link', '#bytes a step', '~#bandwidth', '#utilisation', '~', '#busy'], plan.links.map(link => {
    const bar = el('span', {});
    bar.style.width = Math.min(100, 100 * link.utilisation) + '%';
    return [link.count > 1 ? `${link.name} and ${link.count - 1} alike` : link.name, formatBytes(link.bytes), formatBandwidth(link.bandwidth),
      formatPercent(link.utilisation), el('td', { class: 'aside' }, el('div', { class: 'meter', 'aria-hidden': 'true' }, bar)), formatPercent(link.busy)];
  }));
}

function drawRun(run) {
  const rows = [['step time', formatSeconds(run.predicted.step_time), formatSeconds(run.measured.step_time),
    formatDifference(run.predicted.step_time, run.measured.step_time)]];
  const both = (key, label, value, format) => {
    for (const item of run.predicted[key]) {
      const other = run.measured[key].find(entry => entry.name === item.name);
      if (!other || !(item[value] || other[value])) continue;
      rows.push([label(item), format(item[value]), format(other[value]), formatDifference(item[value], other[value])]);
    }
  };
  both('places', item => `peak of ${item.name}`, 'peak', formatBytes);
  both('kinds', item => `all ${item.name} tasks`, 'seconds', formatSeconds);
  both('links', item => `over ${item.name}`, 'bytes', formatBytes);
  const curves = el('div', { class: 'many after' });
  if (run.steps.length) curves.append(drawCurve('Loss', run.steps.map(s => [s[0], s[1]]), v => v.toPrecision(4), true),
    drawCurve('Time of each step', run.steps.map(s => [s[0], s[2]]), formatSeconds));
  const others = run.other_load >= 0.1 ? el('p', { class: 'lead' },
    `Other programs took ${formatPercent(run.other_load)} of this host while it ran: what was measured is slower by that, and predictions do not know of it.`) : null;
  return el('div', {}, others, table('Predicted beside measured', ['', '#predicted', '#measured', '#predicted is'], rows, ['me']), curves);
}

function drawAssumptions(plan) {
  return stacked('What the numbers rest on', ['what', 'value', 'from'], plan.assumptions.map(([what, value, from]) =>
    [what, el('td', { class: 'words' }, value), el('td', { class: 'words' }, from)]));
}

function drawComparison(plans) {
  const peak = plan => Math.max(0, ...plan.memories.filter(m => !m.host).map(m => m.peak));
  const limit = plan => Math.min(...plan.memories.filter(m => !m.host).map(m => m.limit));
  const host = plan => Math.max(0, ...plan.memories.filter(m => m.host).map(m => m.peak));
  const numbers = [['step time', plan => plan.step_time, formatSeconds], ['samples/s', plan => plan.samples_per_s, digits],
    ['peak of the fullest device', peak, formatBytes], ['limit of a device', limit, formatBytes], ['peak of the fullest host', host, formatBytes],
    ['MFU', plan => plan.mfu, formatPercent], ['HFU', plan => plan.hfu, formatPercent], ['devices', plan => plan.devices, String],
    ['samples a step', plan => plan.samples, String]];
  const paths = plans.map(p => p.path);
  const words = [['fits', ...plans.map(p => p.fits ? 'yes' : 'no')], ['strategy', ...plans.map(p => p.strategy)],
    ['split', ...plans.map(p => p.degrees.text)], ['memory', ...plans.map(p => p.degrees.memory)]];
  const rows = numbers.map(([name, of, format]) => {
    const [a, b] = plans.map(of);
    return [name, format(a), format(b), a > 0 ? (b / a).toFixed(2) + ' x' : ''];
  });
  return el('div', {}, stacked('What two plans do', ['', ...paths], words),
    table('Two plans side by side', ['', ...paths.map(path => '#' + path), '#second / first'], rows));
}
