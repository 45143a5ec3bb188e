// The list of labels, and the box that finds one or makes a new one.

import { announce, count, element, number } from './teach_words.js';

export class Labels {
  #store;
  #pick;
  #list = element('label-list');
  #box = element('label-box');
  #active = null;

  constructor(store, pick) {
    this.#store = store;
    this.#pick = pick;
    for (const event of ['state', 'label', 'view']) store.on(event, () => this.#draw());
    store.on('label', () => this.#showPicked());
    this.#box.addEventListener('input', () => this.#draw());
    this.#box.addEventListener('keydown', event => this.#boxKey(event));
    element('label-form').addEventListener('submit', event => this.#submitted(event));
    this.#list.addEventListener('click', event => this.#clicked(event.target.closest('[role=option]')));
    this.#list.addEventListener('keydown', event => this.#listKey(event));
  }

  #all() {
    const labels = [...(this.#store.state?.labels ?? [])];
    if (this.#store.state && this.#store.isDraft) labels.push({ name: this.#store.label, is_new: true, yes: 0, no: 0, tagged: null });
    return labels;
  }

  #typed() {
    return this.#box.value.trim();
  }

  #match(typed) {
    const labels = this.#all();
    return labels.find(({ name }) => name === typed) ?? labels.find(({ name }) => name.toLowerCase() === typed.toLowerCase());
  }

  #draw() {
    if (!this.#store.state) return;
    const typed = this.#typed();
    const shown = this.#all()
      .map((label, index) => ({ ...label, index }))
      .filter(({ name }) => name.toLowerCase().includes(typed.toLowerCase()));
    const isShown = wanted => shown.some(({ name }) => name === wanted);
    if (!isShown(this.#active)) this.#active = isShown(this.#store.label) ? this.#store.label : shown[0]?.name ?? null;
    const options = this.#options(shown.length);
    shown.forEach((label, place) => this.#fill(options[place], label));
    const make = element('label-new');
    make.hidden = !typed || Boolean(this.#match(typed));
    make.textContent = `Add the label “${typed}”`;
    element('label-none').hidden = shown.length > 0 || !make.hidden;
  }

  #showPicked() {
    const option = [...this.#list.children].find(({ name }) => name === this.#store.label);
    option?.scrollIntoView({ block: 'nearest' });
  }

  // As many options as are needed; they are kept, so that the focus stays.
  #options(length) {
    while (this.#list.children.length > length) this.#list.lastChild.remove();
    while (this.#list.children.length < length) this.#list.append(makeOption());
    return this.#list.children;
  }

  #fill(option, { name, index, is_new: isNew, yes, no, tagged }) {
    const isPicked = name === this.#store.label;
    option.name = name;
    option.tabIndex = name === this.#active ? 0 : -1;
    option.setAttribute('aria-selected', String(isPicked));
    option.querySelector('kbd').textContent = index < 9 ? String(index + 1) : '';
    option.querySelector('.name').textContent = name;
    option.querySelector('.tagged').textContent = tagged === null ? '' : number(tagged);
    option.querySelector('.chip').hidden = !isNew;
    option.querySelector('.yes-count').textContent = yes ? number(yes) : '';
    option.querySelector('.no-count').textContent = no ? number(no) : '';
    option.querySelector('.label-marks').hidden = !yes && !no;
    option.setAttribute('aria-label', `${name}${isNew ? ', new' : ''}, ${count(tagged ?? 0, 'photo')} tagged, marks: ${yes} yes, ${no} no`);
  }

  #clicked(option) {
    if (option) this.#pick(option.name);
  }

  #submitted(event) {
    event.preventDefault();
    const typed = this.#typed();
    if (!typed) return;
    const match = this.#match(typed);
    this.#box.value = '';
    if (!match) announce(`${typed} is a new label. Mark three to five examples.`);
    this.#pick(match?.name ?? typed, { isTyped: true });
  }

  #boxKey(event) {
    if (event.key === 'ArrowDown' && this.#list.children.length) {
      event.preventDefault();
      this.#focus(this.#list.children[0]);
    }
    if (event.key === 'Escape' && this.#box.value) {
      event.stopPropagation();
      this.#box.value = '';
      this.#draw();
    }
  }

  #listKey(event) {
    const options = [...this.#list.children];
    const place = options.indexOf(event.target);
    const places = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: options.length - 1 };
    if (place < 0) return;
    if (event.key === 'Enter' || event.key === ' ') this.#pick(event.target.name);
    else if (event.key in places) this.#focus(options[Math.max(0, Math.min(places[event.key], options.length - 1))]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #focus(option) {
    this.#active = option.name;
    for (const other of this.#list.children) other.tabIndex = other === option ? 0 : -1;
    option.focus();
  }

  // The label of a key, 1 to 9.
  numbered(key) {
    return this.#all()[Number(key) - 1]?.name ?? null;
  }
}

function makeOption() {
  const option = document.createElement('li');
  option.setAttribute('role', 'option');
  option.append(part('kbd'), part('span', 'name'), part('span', 'chip', 'new'), part('span', 'tagged number'), makeMarks());
  return option;
}

function makeMarks() {
  const marks = part('span', 'label-marks number small');
  marks.append(part('span', 'yes-count'), part('span', 'no-count'));
  return marks;
}

function part(name, className = '', text = '') {
  const result = document.createElement(name);
  result.className = className;
  result.textContent = text;
  return result;
}
