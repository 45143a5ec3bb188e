// The page on which a person teaches a tagger new labels by clicking: puts its parts together and keeps them up to date.

import { Actions } from './teach_actions.js';
import { onConnection } from './teach_api.js';
import { connectDialogs, openHelp } from './teach_dialogs.js';
import { Filters } from './teach_filters.js';
import { PhotoGrid } from './teach_grid.js';
import { Keys } from './teach_keys.js';
import { Labels } from './teach_labels.js';
import { Panel } from './teach_panel.js';
import { Rows } from './teach_rows.js';
import { closeDrawer, connectDrawers } from './teach_drawers.js';
import { drawStatus } from './teach_status.js';
import { Store } from './teach_store.js';
import { Viewer } from './teach_viewer.js';
import { announce, count, element, number } from './teach_words.js';

const SILENCE = 'The server does not answer. Nothing is lost: each mark that was answered is on disk. Trying again…';
const POLL = { shown: 2000, hidden: 5000 };
const RENEWAL = 6000; // milliseconds between new looks at the photos while they are being indexed

const store = new Store();
const actions = new Actions(store);
const grid = new PhotoGrid(store, actions);
const rows = new Rows(store, actions, grid);
const filters = new Filters(store, grid);
const labels = new Labels(store, pick);
new Panel(store, actions);
const viewer = new Viewer(store, actions, tile => filters.like(tile));
let renewed = performance.now();
let wasDone = true; // whether all photos had been looked at when these were asked for

// Picks a label, or none.
function pick(name, { isTyped = false } = {}) {
  store.setLabel(name);
  // Tagged and marked are of a label; another one starts with all photos.
  store.setFilter({ show: store.filter.show === 'untagged' ? 'untagged' : 'all' });
  filters.remember();
  open();
  closeDrawer();
  element('middle').scrollTop = 0;
  if (isTyped) grid.focus(0);
}

function pickByKey(name) {
  pick(name);
  rows.focusSoon();
}

// Shows the picked label and the filter.
function open() {
  actions.loadView();
  grid.show();
  if (store.label !== null) announce(`Label ${store.label}.`);
}

function drawHead() {
  const { label, view, state } = store;
  const facts = view ?? store.facts();
  element('welcome').hidden = label !== null;
  element('label-head').hidden = label === null;
  element('label-title').textContent = label ?? '';
  element('start-name').textContent = label ?? '';
  element('label-new-mark').hidden = !(store.isDraft || facts?.is_new);
  element('label-facts').textContent = headline(facts, state);
  if (label === null) element('start').hidden = true;
  document.title = label === null ? 'Teach a tagger' : `${label} – teach a tagger`;
}

function headline(facts, state) {
  if (!facts || !state) return store.label === null ? '' : 'Not marked yet';
  if (store.facts()?.can_change === false) return `Tags ${count(facts.tagged, 'photo')}. This label cannot be taught here.`;
  return `Tags ${number(facts.tagged)} of ${count(state.photos.total, 'photo')}`;
}

// The grid follows the marks, but not while it is under the pointer.
function followMarks() {
  let sequence = null;
  store.on('label', () => { sequence = null; });
  store.on('view', () => {
    const now = store.view?.sequence ?? null;
    const isNews = sequence !== null && now !== sequence;
    const isFirst = sequence === null && now !== null && store.view.yes + store.view.no === 1;
    sequence = now;
    if (isNews || isFirst) grid.outdate();
  });
}

// While photos are being looked at, there is more to show from time to time, and once more at the end.
function renewWhileIndexing() {
  const { is_done: isDone } = store.state.photos;
  if (isDone ? wasDone : performance.now() - renewed < RENEWAL) return;
  wasDone = isDone;
  renewed = performance.now();
  actions.loadView();
  grid.outdate();
}

async function poll() {
  // If the server does not answer, the banner says so and the next turn asks again.
  await actions.refresh().then(renewWhileIndexing, () => {});
  setTimeout(poll, document.hidden ? POLL.hidden : POLL.shown);
}

async function start() {
  for (const event of ['state', 'label', 'view']) store.on(event, drawHead);
  store.on('state', () => drawStatus(store.state));
  store.on('outdated', () => grid.outdate());
  followMarks();
  onConnection(answers => {
    element('banner').hidden = answers;
    element('banner').textContent = answers ? '' : SILENCE;
    if (answers) grid.outdate();
  });
  connectDialogs(store, actions, pick);
  connectDrawers();
  new Keys(actions, {
    open: (tile, owner) => viewer.open(tile, owner),
    like: tile => filters.like(tile),
    label: key => { const name = labels.numbered(key); if (name !== null) pickByKey(name); },
    search: () => element('search').focus(),
    help: openHelp,
    close: closeDrawer,
  });
  element('sort-again').addEventListener('click', () => grid.sortAgain());
  await actions.refresh().catch(() => {});
  wasDone = store.state?.photos.is_done ?? false;
  filters.restore(open);
  setTimeout(poll, POLL.shown);
}

start();
