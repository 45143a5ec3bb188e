// The page on which photos are tagged: takes photos in, and holds the threshold for all of them.

import { Photo } from "/pages/predict_photo.js";
import { fetchJson } from "/pages/predict_send.js";

const at = (id) => document.getElementById(id);
const photos = [];
const options = { labels: 1, hasEvidence: false, say };
let threshold = null; // null: each label's own
let drawing = 0;
let quiet = 0;

function say(text, isShown = false) {
  at("said").textContent = text;
  if (!isShown) return;
  at("banner").textContent = text;
  at("banner").hidden = false;
  clearTimeout(quiet);
  quiet = setTimeout(() => { at("banner").hidden = true; }, 8000);
}

async function start() {
  try {
    const model = await fetchJson("/v1/model");
    options.labels = model.labels.length;
    options.hasEvidence = model.has_evidence;
    const labels = model.labels.length === 1 ? "1 label" : `${model.labels.length} labels`;
    at("about").textContent = `${model.name}: ${labels}, ${model.method} on ${model.backbone}`;
    at("about").title = model.labels.join(", ");
    return true;
  } catch (error) {
    at("banner").textContent = `The tagger cannot be asked: ${error.message}`;
    at("banner").hidden = false;
    return false;
  }
}

const started = start();

async function add(files) {
  if (!files.length || !(await started)) return;
  const added = [...files].map((file) => new Photo(file, options));
  photos.push(...added);
  at("photos").append(...added.map((photo) => photo.element));
  at("drop").classList.add("has-photos");
  at("bar").hidden = false;
  drawSummary();
  await Promise.all(added.map(async (photo) => { await photo.load(() => threshold); drawSummary(); }));
  const bad = added.filter((photo) => photo.error).length;
  say(bad ? `${added.length - bad} photos tagged, ${bad} could not be.` : `${added.length} photos tagged.`);
}

function drawSummary() {
  const done = photos.filter((photo) => photo.result || photo.error).length;
  const tags = photos.reduce((sum, photo) => sum + photo.present(threshold).length, 0);
  const bad = photos.filter((photo) => photo.error).length;
  const parts = [done < photos.length ? `${done} of ${photos.length} photos` : `${photos.length} ${photos.length === 1 ? "photo" : "photos"}`];
  parts.push(`${tags} ${tags === 1 ? "tag" : "tags"}`);
  if (bad) parts.push(`${bad} not read`);
  at("summary").textContent = parts.join(", ");
}

function setThreshold(value) {
  threshold = value;
  const slider = at("threshold");
  at("own").setAttribute("aria-pressed", String(value === null));
  at("threshold-value").textContent = value === null ? "own" : value.toFixed(2);
  slider.setAttribute("aria-valuetext", value === null ? "each label's own" : value.toFixed(2));
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(() => { for (const photo of photos) photo.draw(threshold); drawSummary(); });
}

function cell(value) {
  return `"${String(value).replaceAll('"', '""')}"`;
}

function download() {
  const rows = [["photo", "label", "score", "probability", "threshold"]];
  for (const photo of photos) {
    for (const tag of photo.present(threshold)) {
      rows.push([photo.file.name, tag.label, tag.score, tag.probability, threshold ?? tag.threshold]);
    }
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n")], { type: "text/csv" }));
  link.download = "tags.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function clear() {
  for (const photo of photos.splice(0)) photo.close();
  at("photos").replaceChildren();
  at("drop").classList.remove("has-photos", "is-over");
  at("bar").hidden = true;
  at("choose").focus();
  say("All photos were taken off the page.");
}

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  at("drop").classList.add("is-over");
});
addEventListener("dragleave", (event) => { if (!event.relatedTarget) at("drop").classList.remove("is-over"); });
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  at("drop").classList.remove("is-over");
  add(event.dataTransfer.files);
});
addEventListener("paste", (event) => add(event.clipboardData?.files ?? []));
at("choose").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", () => { add([...at("files").files]); at("files").value = ""; });
at("threshold").addEventListener("input", () => setThreshold(Number(at("threshold").value) / 100));
at("own").addEventListener("click", () => setThreshold(threshold === null ? Number(at("threshold").value) / 100 : null));
at("download").addEventListener("click", download);
at("clear").addEventListener("click", clear);
setThreshold(null);
