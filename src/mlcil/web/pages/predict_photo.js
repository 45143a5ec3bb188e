// One photo on the page: its picture, its tags, and where each of them is. Names are only ever set as text.

import { tagsOf } from "/pages/predict_send.js";

const NEXT = 5; // labels below their threshold that can be looked at
const BRIEF = 12; // tags that are shown at most

export class Photo {
  constructor(file, options) {
    this.file = file;
    this.options = options; // labels: how many there are, hasEvidence, say
    this.result = null;
    this.error = "";
    this.picked = null; // the label whose evidence is shown
    this.overlays = new Map();
    this.element = document.getElementById("photo").content.firstElementChild.cloneNode(true);
    this.find(".facts h2").textContent = file.name;
    this.find(".facts h2").title = file.name;
    this.url = URL.createObjectURL(file);
    const image = this.find(".shown");
    image.addEventListener("error", () => { image.hidden = true; this.find(".nothing").hidden = false; });
    image.alt = file.name;
    image.src = this.url;
  }

  find(selector) { return this.element.querySelector(selector); }

  async load(threshold) {
    this.element.classList.add("is-waiting");
    this.find(".state").textContent = "Waiting for its tags";
    try {
      this.result = await tagsOf(this.file, { top: this.options.labels });
    } catch (error) {
      this.error = error.message;
    }
    this.element.classList.remove("is-waiting");
    this.element.classList.toggle("has-error", Boolean(this.error));
    this.draw(threshold());
  }

  /** The tags above one threshold, or above each label's own where it is null. */
  present(threshold) {
    return this.result ? this.result.tags.filter((tag) => tag.score > (threshold ?? tag.threshold)) : [];
  }

  draw(threshold) {
    if (!this.result) {
      if (this.error) this.find(".state").textContent = `${this.error[0].toUpperCase()}${this.error.slice(1)}`;
      this.find(".next").hidden = true;
      return;
    }
    const present = this.present(threshold);
    const isPresent = new Set(present);
    const others = this.result.tags.filter((tag) => !isPresent.has(tag)).slice(0, NEXT);
    const { width, height } = this.result;
    const count = present.length === 1 ? "1 tag" : `${present.length || "no"} tags`;
    const more = present.length > BRIEF ? `, the first ${BRIEF} shown` : "";
    this.find(".state").textContent = `${width} × ${height}, ${count}${more}`;
    const [tags, next] = this.element.querySelectorAll(".tags");
    this.fill(tags, present.slice(0, BRIEF), threshold, true);
    this.fill(next, others, threshold, false);
    this.find(".next").hidden = !others.length;
  }

  fill(list, tags, threshold, isPresent) {
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.label : null;
    list.replaceChildren(...tags.map((tag) => this.row(tag, threshold, isPresent)));
    for (const button of list.querySelectorAll("button")) if (button.dataset.label === focused) button.focus();
  }

  row(tag, threshold, isPresent) {
    const row = document.getElementById("tag").content.firstElementChild.cloneNode(true);
    const button = row.querySelector("button");
    const limit = threshold ?? tag.threshold;
    button.dataset.label = tag.label;
    button.classList.toggle("is-absent", !isPresent);
    button.setAttribute("aria-pressed", String(this.picked === tag.label));
    button.disabled = !this.options.hasEvidence;
    button.title = `score ${tag.score.toFixed(3)}, threshold ${limit.toFixed(3)}`;
    row.querySelector(".label").textContent = tag.label;
    row.querySelector(".value").textContent = tag.score.toFixed(2);
    row.querySelector(".fill").style.width = `${100 * tag.score}%`;
    row.querySelector(".mark").style.left = `${100 * limit}%`;
    button.addEventListener("click", () => this.pick(tag.label));
    return row;
  }

  async pick(label) {
    this.picked = this.picked === label ? null : label;
    this.mark();
    this.find(".overlay").hidden = true;
    if (this.picked === null) return;
    try {
      await this.fetchOverlay(label);
    } catch (error) {
      this.options.say(`Cannot show where ${label} is: ${error.message}`, true);
      if (this.picked === label) this.picked = null;
    }
    this.mark();
    this.show();
  }

  mark(busy = null) {
    for (const button of this.element.querySelectorAll(".tag")) {
      button.setAttribute("aria-pressed", String(button.dataset.label === this.picked));
      button.setAttribute("aria-busy", String(busy !== null && button.dataset.label === busy));
    }
  }

  async fetchOverlay(label) {
    if (this.overlays.has(label)) return;
    this.mark(label);
    const found = await tagsOf(this.file, { evidence: true, label });
    this.overlays.set(label, found.evidence[label] ?? null);
  }

  show() {
    const overlay = this.find(".overlay");
    const source = this.picked === null ? null : this.overlays.get(this.picked);
    overlay.hidden = !source;
    if (source) overlay.src = source;
    if (this.picked === null) return;
    this.options.say(source ? `The picture shows where ${this.picked} is.` : `${this.picked}: the evidence is the same everywhere.`, !source);
  }

  close() { URL.revokeObjectURL(this.url); }
}
