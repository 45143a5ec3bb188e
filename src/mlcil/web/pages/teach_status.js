// The line on top: which tagger, how far the photos have been looked at, and which could not be read.

import { count, duration, element, number } from './teach_words.js';

export function drawStatus({ tagger, photos }) {
  element('tagger').textContent = tagger;
  drawIndexing(photos);
  drawProblems(photos);
}

function drawIndexing({ total, indexed, is_done: isDone, per_second: speed, failure = null }) {
  element('indexing').hidden = isDone && !failure;
  const bar = element('indexing-bar');
  bar.max = Math.max(total, 1);
  bar.value = indexed;
  const left = speed > 0 ? `, about ${duration((total - indexed) / speed)} left` : '';
  const done = `${number(indexed)} of ${count(total, 'photo')} looked at`;
  element('indexing-text').textContent = failure ? `${done}, then it stopped: ${failure}` : `${done}${left}`;
}

function drawProblems({ unreadable, problems }) {
  element('problems').hidden = !unreadable;
  element('problems-title').textContent = `${count(unreadable, 'photo')} could not be read`;
  const list = element('problems-list');
  // Written again only if there is something new, so that reading it is not disturbed.
  if (list.dataset.shown === String(unreadable)) return;
  list.dataset.shown = String(unreadable);
  const lines = problems.map(({ name, reason }) => `${name}: ${reason}`);
  if (unreadable > problems.length) lines.push(`and ${number(unreadable - problems.length)} more`);
  list.replaceChildren(...lines.map(text => {
    const item = document.createElement('li');
    item.textContent = text;
    return item;
  }));
}
