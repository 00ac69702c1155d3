/**
 * A ring of numbers with a fixed room: the newest push the oldest out. Nothing is allocated later.
 */
export class Ring {
  /** @param {number} capacity at least 1 */
  constructor(capacity) {
    this.values = new Float64Array(capacity);
    this.length = 0;
    this.next = 0;
  }

  /** @param {number} value */
  push(value) {
    this.values[this.next] = value;
    this.next = (this.next + 1) % this.values.length;
    this.length = Math.min(this.length + 1, this.values.length);
  }

  /** The value so many places from the oldest one; `undefined` beyond the newest. */
  at(index) {
    if (index < 0 || index >= this.length) {
      return undefined;
    }
    const capacity = this.values.length;
    return this.values[(this.next - this.length + index + capacity) % capacity];
  }

  /** The newest value; `undefined` in an empty ring. */
  get last() {
    return this.at(this.length - 1);
  }

  /** Whether one of them is this. @param {number} value */
  has(value) {
    for (let index = 0; index < this.length; index += 1) {
      if (this.at(index) === value) return true;
    }
    return false;
  }

  clear() {
    this.length = 0;
    this.next = 0;
  }
}
