// Whether a part of the page must stay as it is: the pointer is over it, a finger touched it last, or it has the
// keyboard's focus. Nothing may move under the pointer.

const COMMANDS = new Set([...' xugozZ123456789', 'Shift', 'Control', 'Alt', 'Meta']);
let isKeyboardLast = false;
let pointerAt = null;

// Scrolling sends moves of a pointer that has not moved.
function pointerMoved(event) {
  const place = `${event.screenX},${event.screenY}`;
  if (place !== pointerAt) isKeyboardLast = false;
  pointerAt = place;
}

// Keys that mark are used with the pointer, too; the others say that a person gets about by keyboard.
document.addEventListener('keydown', event => { if (!COMMANDS.has(event.key)) isKeyboardLast = true; }, true);
document.addEventListener('pointermove', pointerMoved, true);
document.addEventListener('pointerdown', () => { isKeyboardLast = false; }, true);

// Whether the person moved about by keyboard last, and not by pointer.
export const usesKeyboard = () => isKeyboardLast;

export class Hold {
  #element;
  #released;
  #isUnderPointer = false;
  #isTouched = false;
  #isFocused = false;

  // `released` is called when the part may change again.
  constructor(element, released) {
    this.#element = element;
    this.#released = released;
    element.addEventListener('pointerenter', event => this.#pointer(event, true));
    element.addEventListener('pointerleave', event => this.#pointer(event, false));
    // A finger leaves after each tap; what it touched stays until it touches something else.
    document.addEventListener('pointerdown', event => this.#touch(event), true);
    // A click moves the focus, too, but then it is the pointer that counts.
    for (const event of ['focusin', 'keydown']) element.addEventListener(event, () => { this.#isFocused ||= usesKeyboard(); });
    element.addEventListener('focusout', event => this.#focusLeft(event));
  }

  get isPointedAt() {
    return this.#isUnderPointer || this.#isTouched;
  }

  get isHeld() {
    return this.isPointedAt || this.#isFocused;
  }

  #focusLeft(event) {
    if (this.#element.contains(event.relatedTarget)) return;
    this.#isFocused = false;
    this.#check();
  }

  #pointer(event, isOver) {
    if (event.pointerType === 'touch') return;
    this.#isUnderPointer = isOver;
    this.#check();
  }

  #touch(event) {
    this.#isTouched = event.pointerType === 'touch' && this.#element.contains(event.target);
    this.#check();
  }

  // A moment later, when it is known what the pointer is over now: that must not be moved by what changes here.
  #check() {
    setTimeout(() => { if (!this.isHeld) this.#released(); }, 0);
  }
}

// Makes a change above what is held without moving what is held: the page is scrolled by as much as it was moved.
export function steady(scroller, held, change) {
  if (!held) return change();
  const before = held.getBoundingClientRect().top;
  change();
  const moved = held.getBoundingClientRect().top - before;
  if (moved) scroller.scrollTop += moved;
}
