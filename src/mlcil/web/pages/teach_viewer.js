// One photo, large, with all its tags: each can be said yes or no to, and shows where its evidence is.

import * as api from './teach_api.js';
import { announce, element, percent, shortName, tell } from './teach_words.js';

const KINDS = { yes: 'Yes', no: 'No', unknown: 'Not known' };

export class Viewer {
  #store;
  #actions;
  #dialog = element('viewer');
  #evidence = element('viewer-evidence');
  #photo = null;
  #tile = null;
  #owner = null;
  #tag = null; // the tag whose evidence is shown
  #findLike;

  // `findLike(tile)` shows photos similar to one.
  constructor(store, actions, findLike) {
    this.#store = store;
    this.#actions = actions;
    this.#findLike = findLike;
    element('viewer-close').addEventListener('click', () => this.#dialog.close());
    element('viewer-back').addEventListener('click', () => this.#turn(-1));
    element('viewer-next').addEventListener('click', () => this.#turn(1));
    element('viewer-like').addEventListener('click', () => this.#like());
    element('viewer-tags').addEventListener('click', event => this.#clicked(event));
    this.#dialog.addEventListener('keydown', event => this.#key(event));
    this.#dialog.addEventListener('close', () => this.#closed());
    element('viewer-photo').addEventListener('load', event => {
      element('viewer-figure').style.setProperty('--ratio', event.target.naturalWidth / event.target.naturalHeight);
    });
  }

  // Opens a photo; `owner` is the row or grid that it was in, which gets the focus back.
  open(tile, owner) {
    this.#owner = owner;
    this.#tag = null;
    this.#show(tile);
    if (!this.#dialog.open) this.#dialog.showModal();
    element('viewer-figure').focus();
  }

  #show(tile) {
    this.#tile = tile;
    this.#photo = null;
    element('viewer-name').textContent = shortName(tile.name);
    element('viewer-name').title = tile.name;
    element('viewer-photo').src = api.photoOf(tile.id);
    element('viewer-photo').alt = tile.name;
    element('viewer-text').textContent = '';
    this.#hideEvidence();
    this.#load();
  }

  async #load() {
    const { id } = this.#tile;
    try {
      const photo = await api.photo(id, this.#store.knownLabel);
      if (id !== this.#tile.id) return;
      this.#photo = photo;
      this.#drawTags();
      if (this.#tag !== null) this.#showEvidence();
    } catch (error) {
      element('viewer-text').textContent = error.message;
    }
  }

  // The picked label comes first, also when it has no mark yet.
  #tags() {
    const { label } = this.#store;
    const first = this.#photo.tags.find(tag => tag.label === label)
      ?? (label === null ? null : { label, score: null, threshold: null, is_tagged: false, mark: this.#store.markOf(this.#tile) });
    return [...(first ? [first] : []), ...this.#photo.tags.filter(tag => tag.label !== label)];
  }

  #drawTags() {
    const list = element('viewer-tags');
    const tags = this.#tags();
    while (list.children.length > tags.length) list.lastChild.remove();
    while (list.children.length < tags.length) list.append(makeTag());
    tags.forEach((tag, place) => this.#fill(list.children[place], tag));
    const tagged = tags.filter(tag => tag.is_tagged).length;
    const size = `${this.#photo.width} × ${this.#photo.height}`;
    element('viewer-text').textContent = `${size} pixels, ${tagged} of ${tags.length} labels apply. Click a tag to see where.`;
  }

  #fill(item, tag) {
    item.tag = tag;
    item.toggleAttribute('data-tagged', tag.is_tagged);
    const name = item.querySelector('.tag-name');
    name.querySelector('.text').textContent = tag.label;
    name.querySelector('.value').textContent = tag.score === null ? '' : percent(tag.score);
    name.setAttribute('aria-pressed', String(tag.label === this.#tag));
    const bar = item.querySelector('.bar');
    bar.hidden = tag.score === null;
    bar.querySelector('.fill').style.width = `${(tag.score ?? 0) * 100}%`;
    bar.querySelector('.limit').style.left = `${(tag.threshold ?? 0) * 100}%`;
    for (const button of item.querySelectorAll('[data-act]')) {
      const isSo = button.dataset.act === tag.mark;
      button.setAttribute('aria-pressed', String(isSo));
      button.setAttribute('aria-label', `${KINDS[button.dataset.act]}: ${tag.label}`);
    }
    item.querySelector('[data-act=unknown]').hidden = !tag.mark;
  }

  #clicked(event) {
    const item = event.target.closest('li');
    if (!item) return;
    const act = event.target.closest('[data-act]')?.dataset.act;
    if (act) this.#mark(item.tag, act);
    else if (event.target.closest('.tag-name')) this.#toggleEvidence(item.tag.label);
  }

  async #mark(tag, act) {
    const mark = act === 'unknown' || act === tag.mark ? null : act;
    const before = tag.mark;
    tag.mark = mark;
    this.#drawTags();
    const isTaken = await this.#actions.mark([{ tile: this.#tile, mark }], tag.label);
    if (isTaken) return this.#load();
    tag.mark = before;
    this.#drawTags();
  }

  #toggleEvidence(label) {
    this.#tag = this.#tag === label ? null : label;
    this.#drawTags();
    this.#hideEvidence();
    if (this.#tag !== null) this.#showEvidence();
  }

  async #showEvidence() {
    const { id } = this.#tile;
    const tag = this.#tag;
    const isWanted = () => this.#dialog.open && id === this.#tile.id && tag === this.#tag;
    try {
      const image = await api.evidence(id, tag);
      if (!isWanted()) return;
      this.#hideEvidence();
      this.#evidence.src = URL.createObjectURL(image);
      this.#evidence.hidden = false;
      announce(`Evidence of ${tag} is shown on the photo.`);
    } catch (error) {
      if (isWanted()) this.#noEvidence(error.message);
    }
  }

  #hideEvidence() {
    this.#evidence.hidden = true;
    URL.revokeObjectURL(this.#evidence.src);
    this.#evidence.removeAttribute('src');
  }

  #noEvidence(why) {
    this.#hideEvidence();
    element('viewer-text').textContent = why;
    announce(why);
  }

  #turn(step) {
    const tile = this.#owner.neighbour(this.#tile.id, step);
    if (tile) this.#show(tile);
    else announce('There is no further photo here.');
  }

  #like() {
    this.#dialog.close();
    this.#findLike(this.#tile);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const tag = this.#photo && this.#tags().find(({ label }) => label === (this.#tag ?? this.#store.label));
    const isOnButton = event.target.closest('button') !== null;
    const marks = { ' ': isOnButton ? null : 'yes', x: 'no', u: 'unknown' };
    if (event.key === 'ArrowLeft') this.#turn(-1);
    else if (event.key === 'ArrowRight') this.#turn(1);
    else if (event.key === 'g') this.#like();
    else if (event.key === 'z' && !event.repeat) this.#actions.undo().then(() => this.#load());
    else if (marks[event.key] && tag) this.#mark(tag, marks[event.key]);
    else if (marks[event.key]) tell('Pick a tag first.');
    else return;
    event.preventDefault();
  }

  #closed() {
    element('viewer-photo').removeAttribute('src');
    this.#hideEvidence();
    element('viewer-tags').replaceChildren();
    this.#owner?.focusOn(this.#tile.id);
  }
}

function makeTag() {
  const item = document.createElement('li');
  const name = item.appendChild(document.createElement('button'));
  name.type = 'button';
  name.className = 'tag-name';
  for (const kind of ['text', 'value number']) name.appendChild(document.createElement('span')).className = kind;
  const bar = name.appendChild(document.createElement('span'));
  bar.className = 'bar';
  for (const kind of ['fill', 'limit']) bar.appendChild(document.createElement('span')).className = kind;
  // The same three buttons as on a tile.
  const marks = document.getElementById('tile-template').content.querySelector('.tile-marks').cloneNode(true);
  marks.className = 'tag-marks';
  for (const button of marks.children) button.removeAttribute('tabindex');
  item.append(marks);
  return item;
}
