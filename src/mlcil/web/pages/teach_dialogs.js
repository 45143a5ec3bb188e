// Questions before something is renamed, merged, deleted, saved or exported; and the list of keys.

import * as api from './teach_api.js';
import { count, element, tell } from './teach_words.js';

const dialog = element('ask');
let answer = null;

// Asks one thing. `work` gets what was typed or chosen, and may return lines to show; its error stays in the dialog.
function ask({ title, text, ok, isDangerous = false, field = null, choices = null, work }) {
  element('ask-title').textContent = title;
  element('ask-text').textContent = text;
  element('ask-error').hidden = true;
  element('ask-lines').hidden = true;
  showField(field, choices);
  const button = element('ask-ok');
  button.textContent = ok;
  button.hidden = false;
  button.className = isDangerous ? 'danger' : 'primary';
  element('ask-cancel').textContent = 'Cancel';
  answer = work;
  dialog.showModal();
  if (field) element('ask-input').select();
}

function showField(field, choices) {
  const label = element('ask-label');
  label.hidden = !field && !choices;
  label.textContent = field?.label ?? choices?.label ?? '';
  label.htmlFor = choices ? 'ask-select' : 'ask-input';
  element('ask-input').hidden = !field;
  element('ask-input').value = field?.value ?? '';
  element('ask-input').placeholder = field?.placeholder ?? '';
  element('ask-input').required = Boolean(field && !field.isOptional);
  const select = element('ask-select');
  select.hidden = !choices;
  select.replaceChildren(...(choices?.values ?? []).map(value => new Option(value, value)));
}

async function answered(event) {
  event.preventDefault();
  const button = element('ask-ok');
  const value = element('ask-select').hidden ? element('ask-input').value.trim() : element('ask-select').value;
  if (button.disabled || (element('ask-input').required && !value)) return;
  button.disabled = true;
  element('ask-error').hidden = true;
  try {
    showLines(await answer(value));
  } catch (error) {
    element('ask-error').textContent = error.message;
    element('ask-error').hidden = false;
  } finally {
    button.disabled = false;
  }
}

// What was done, to be read and closed; without lines there is nothing to read.
function showLines(result) {
  if (!result) return dialog.close();
  element('ask-title').textContent = result.title;
  element('ask-text').textContent = '';
  showField(null, null);
  element('ask-lines').replaceChildren(...result.lines.map(line => {
    const item = document.createElement('li');
    item.textContent = line;
    return item;
  }));
  element('ask-lines').hidden = false;
  element('ask-ok').hidden = true;
  element('ask-cancel').textContent = 'Close';
  element('ask-cancel').focus();
}

const others = store => store.state.labels.map(label => label.name).filter(name => name !== store.label);

// A label that was only typed is renamed and dropped here; the server has never heard of it.
function renameLabel(store, actions, pick) {
  const { label } = store;
  ask({
    title: 'Rename this label', text: 'Its photos and marks stay.', ok: 'Rename',
    field: { label: 'New name', value: label },
    work: async to => {
      if (to === label) return;
      if (!store.isDraft) await actions.changeLabels(() => api.rename(label, to));
      pick(to);
      tell(`${label} is now named ${to}.`);
    },
  });
}

function mergeLabel(store, actions, pick) {
  const { label } = store;
  if (store.isDraft || !others(store).length) return tell('There is nothing to merge.');
  ask({
    title: `Merge ${label} into another label`,
    text: `The photos of ${label} become those of the other, and ${label} is gone. Undo brings it back.`,
    ok: 'Merge', choices: { label: 'Into', values: others(store) },
    work: async into => {
      await actions.changeLabels(() => api.merge(label, into));
      pick(into);
      tell(`${label} was merged into ${into}.`);
    },
  });
}

function deleteLabel(store, actions, pick) {
  const { label } = store;
  if (store.isDraft) return pick(null);
  const { yes, no } = store.facts();
  ask({
    title: `Delete ${label}?`,
    text: `No photo will have this tag any more, and its ${count(yes + no, 'mark')} will be gone. Undo brings it back.`,
    ok: 'Delete', isDangerous: true,
    work: async () => {
      await actions.changeLabels(() => api.remove(label));
      pick(null);
      tell(`${label} was deleted.`);
    },
  });
}

function save(store, actions) {
  ask({
    title: 'Save a tagger',
    text: `A new version is written, with ${count(store.state.labels.length, 'label')}. Earlier versions stay. `
      + 'This takes some seconds.',
    ok: 'Save', field: { label: 'Name', value: '', isOptional: true, placeholder: 'chosen for you if left empty' },
    work: async name => {
      const result = await actions.save(name || null);
      tell(`Saved as ${result.name}.`);
      return { title: `Saved as ${result.name}`, lines: [...result.lines, `${count(result.labels, 'label')} in all`] };
    },
  });
}

const versionsOf = store => store.state.versions.map(version => version.name).reverse();

function exportXmp(store, actions) {
  ask({
    title: 'Write XMP files',
    text: `A small file with the tags is written beside each of the ${count(store.state.photos.total, 'photo')}, `
      + 'for photo programs to read. The photos are not touched.',
    ok: 'Write',
    work: async () => ({ title: 'Written', lines: (await actions.exportAs('xmp', versionsOf(store)[0] ?? null)).lines }),
  });
}

function exportOnnx(store, actions) {
  if (!versionsOf(store).length) return tell('Save a tagger first: ONNX is written from a saved version.');
  ask({
    title: 'Export as ONNX', text: 'One file that other programs can run.', ok: 'Export',
    choices: { label: 'Version', values: versionsOf(store) },
    work: async version => ({ title: 'Exported', lines: (await actions.exportAs('onnx', version)).lines }),
  });
}

const COMMANDS = { rename: renameLabel, merge: mergeLabel, delete: deleteLabel, save, 'export-xmp': exportXmp, 'export-onnx': exportOnnx };

export function openHelp() {
  element('help').showModal();
}

// Connects all buttons that carry `data-do`. `pick` picks a label.
export function connectDialogs(store, actions, pick) {
  element('ask-form').addEventListener('submit', answered);
  element('ask-cancel').addEventListener('click', () => dialog.close());
  element('help-open').addEventListener('click', openHelp);
  element('help-close').addEventListener('click', () => element('help').close());
  for (const each of document.querySelectorAll('dialog')) {
    each.addEventListener('click', event => { if (event.target === each) each.close(); });
  }
  document.addEventListener('click', event => {
    const name = event.target.closest('[data-do]')?.dataset.do;
    if (name === 'undo') actions.undo();
    else if (name === 'redo') actions.redo();
    else if (name && store.state) COMMANDS[name](store, actions, pick);
  });
}
