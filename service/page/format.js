// Numbers and times as text, with no more digits than are known.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const MINUS = "\u2212";

/** Format a unit's name: characters that are invisible or turn the direction of text, as ⟨U+202E⟩, would disguise it. */
export function nameText(unit) {
  return unit.replace(/[\p{Cc}\p{Cf}]/gu, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** Format a number with a real minus sign; a dash if there is no number. */
export function number(value, decimals = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const format = decimals === 0 ? WHOLE : new Intl.NumberFormat("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return format.format(value).replace(/^-(?=[0.]*$)/, "").replace("-", MINUS); // no minus before 0.0
}

/** Format a probability or share in percent. */
export function percent(value, decimals = 0) {
  if (value === null || value === undefined) return "–";
  if (decimals === 0 && value > 0 && value < 0.005) return "<1%";
  if (decimals === 0 && value < 1 && value > 0.995) return ">99%";
  return `${number(100 * value, decimals)}%`;
}

/** Whether the cap alone bounds the RUL, in any RUL state. */
export function isCapped({ rul, rul_state: state, interval }) {
  return state === "at_least_cap" || (rul >= interval.upper && interval.upper > 0);
}

/** Format the RUL: "≥" at the cap, a question mark if the readings are unlike training. */
export function rulText(unit) {
  const text = `${isCapped(unit) ? "≥ " : ""}${number(unit.rul)}`;
  return unit.rul_state === "out_of_distribution" ? `${text}?` : text;
}

/** Format a RUL with its interval: "8 (5–11)", at the cap "≥ 125 (122+)". */
export function rulWithInterval({ rul, lower, upper }) {
  const capped = isCapped({ rul, interval: { upper } });
  return `${capped ? "≥ " : ""}${number(rul)} (${number(lower)}${capped ? "+" : `–${number(upper)}`})`;
}

let ahead = 0; // milliseconds from the reader's clock, which may be hours wrong, to that of the service

/** Take the service's time from the `date` header of an answer. */
export function setClock(date) {
  ahead = Date.parse(date) - Date.now() || 0;
}

/** The seconds since a time, by the service's clock. */
export function secondsSince(time) {
  return Math.max(0, (Date.now() + ahead - Date.parse(time)) / 1000);
}

/** Format the age of a time: "12 s", "3 min", "5 h", "2 d". */
export function age(time) {
  if (!time) return "–";
  const seconds = secondsSince(time);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** Format a time in the reader's locale and time zone. */
export function moment(time) {
  return time ? new Date(time).toLocaleString() : "";
}

/** Format the time of day: "14:05". */
export function clock(time) {
  return time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** Format a signed number of cycles: "+3.2", "−12". */
export function signed(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return `${value < 0 ? MINUS : "+"}${size.toFixed(size >= 9.95 ? 0 : size >= 0.995 ? 1 : 2)}`;
}
