// The panel at the side: marks, how good the label is likely to be, its threshold, steps, saving.

import { count, element, number, percent } from './teach_words.js';

const MEANING = {
  precision: ['Precision', 'of the photos it tags, so many are right'],
  recall: ['Recall', 'of the photos that show it, so many are tagged'],
};

export class Panel {
  #store;
  #actions;
  #slider = element('threshold-slider');
  #isDragging = false;

  constructor(store, actions) {
    this.#store = store;
    this.#actions = actions;
    element('expected-bars').append(...Object.keys(MEANING).map(makeBar));
    this.#slider.addEventListener('input', () => this.#dragged());
    this.#slider.addEventListener('change', () => this.#released());
    element('threshold-own').addEventListener('click', () => this.#actions.setThreshold(null));
    store.on('view', () => this.#drawLabel());
    store.on('label', () => this.#drawLabel());
    store.on('state', () => this.#drawState());
  }

  #drawLabel() {
    const { view, label } = this.#store;
    element('panel-label').hidden = label === null;
    element('marks-yes').textContent = `${number(view?.yes ?? 0)} yes`;
    element('marks-no').textContent = `${number(view?.no ?? 0)} no`;
    element('expected-none').hidden = Boolean(view?.expected);
    element('expected-bars').hidden = !view?.expected;
    if (view?.expected) for (const key of Object.keys(MEANING)) fillBar(key, view.expected[key]);
    element('advice').textContent = view?.advice ?? 'Mark three to five examples to start with.';
    element('others').textContent = view?.others ?? 'Nothing changes for them yet.';
    this.#drawThreshold();
  }

  #drawThreshold() {
    const threshold = this.#store.view?.threshold;
    element('threshold').hidden = !threshold?.counts.length;
    if (!threshold?.counts.length || this.#isDragging) return;
    this.#slider.max = threshold.counts.length - 1;
    this.#slider.value = nearest(threshold.counts, threshold.value);
    this.#showThreshold(threshold.value, this.#store.view.tagged);
    element('threshold-own').hidden = !threshold.is_chosen;
    element('threshold-own').textContent = `Back to own (${threshold.own.toFixed(2)})`;
  }

  #showThreshold(value, tagged) {
    const total = this.#store.state?.photos.total ?? 0;
    element('threshold-value').textContent = value.toFixed(2);
    element('threshold-text').textContent = `Tags ${number(tagged)} of ${count(total, 'photo')}.`;
    this.#slider.setAttribute('aria-valuetext', `${value.toFixed(2)}, tags ${count(tagged, 'photo')}`);
  }

  #dragged() {
    this.#isDragging = true;
    const [value, tagged] = this.#store.view.threshold.counts[Number(this.#slider.value)];
    this.#showThreshold(value, tagged);
  }

  #released() {
    this.#isDragging = false;
    const [value] = this.#store.view.threshold.counts[Number(this.#slider.value)];
    this.#actions.setThreshold(value);
  }

  #drawState() {
    const { undo, redo, unsaved, versions } = this.#store.state;
    element('undo').disabled = element('top-undo').disabled = undo === null;
    element('redo').disabled = redo === null;
    element('undo-text').textContent = undo === null ? 'Nothing to undo.' : `Last: ${undo}`;
    element('unsaved').textContent = unsaved
      ? `${count(unsaved, 'change')} since the last save. Each is kept on disk already; saving makes a tagger of them.`
      : 'Everything is saved.';
    element('save').classList.toggle('primary', unsaved > 0);
    element('versions').hidden = !versions.length;
    element('versions-title').textContent = count(versions.length, 'saved version');
    element('versions-list').replaceChildren(...[...versions].reverse().map(versionLine));
  }
}

// The place of the possible threshold that is nearest to a value.
function nearest(counts, value) {
  let best = 0;
  counts.forEach(([at], place) => { if (Math.abs(at - value) < Math.abs(counts[best][0] - value)) best = place; });
  return best;
}

function versionLine({ name, labels, saved }) {
  const line = document.createElement('li');
  const when = new Date(saved);
  const date = Number.isNaN(when.getTime()) ? '' : `, ${when.toLocaleString('en', { dateStyle: 'medium', timeStyle: 'short' })}`;
  line.textContent = `${name}: ${count(labels, 'label')}${date}`;
  return line;
}

function makeBar(key) {
  const [title, text] = MEANING[key];
  const bar = document.createElement('div');
  bar.className = 'measure';
  bar.id = `measure-${key}`;
  for (const [name, content] of [['name', title], ['value number', ''], ['track', ''], ['means soft small', text]]) {
    const part = bar.appendChild(document.createElement('span'));
    part.className = name;
    part.textContent = content;
  }
  const track = bar.querySelector('.track');
  track.setAttribute('aria-hidden', 'true');
  for (const name of ['range', 'point']) track.appendChild(document.createElement('span')).className = name;
  return bar;
}

function fillBar(key, [value, low, high]) {
  const bar = element(`measure-${key}`);
  bar.querySelector('.value').textContent = `${percent(value)} (${percent(low)} to ${percent(high)})`;
  const range = bar.querySelector('.range');
  range.style.left = `${low * 100}%`;
  range.style.width = `${Math.max(0.5, (high - low) * 100)}%`;
  bar.querySelector('.point').style.left = `${value * 100}%`;
}
