// Reads units' readings from text files: delimiter, header, matching of columns, values. Must not know the page.

// `MISSING` and `TRUTHS` equal those of `model/cells.py`.
const MISSING = new Set([
  "", "NaN", "nan", "NAN", "-nan", "NA", "N/A", "n/a", "<NA>", "null", "NULL", "None", "none", "-",
  "#N/A", "#NV", "#DIV/0!", "#VALUE!", "#WERT!", "#NUM!", "#ZAHL!", "#REF!", "#BEZUG!",
]);
const TRUTHS = new Map([["true", 1], ["false", 0]]);
const DECIMAL_COMMA = /^[-+]?\d+,\d+(?:e[-+]?\d+)?$/i;
const NUMBER = /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i; // Number() reads 0x10 too
const UNIT_NAMES = ["unit", "unitid", "unitnumber", "unitnr", "engine", "engineid", "machine", "machineid", "asset", "assetid", "id", "serial", "device", "cell"];
const CYCLE_NAMES = ["cycle", "cycles", "timeincycles", "cyclenumber", "flight", "time", "t", "step"];
const CMAPSS = ["unit", "cycle", "setting_1", "setting_2", "setting_3", ...Array.from({ length: 21 }, (_, i) => `sensor_${i + 1}`)];

export class BadFile extends Error {}

/** Decode a file: UTF-16 if it begins with a byte order mark, as "Unicode text" of spreadsheets does, otherwise UTF-8, or what Excel saves as CSV. */
export function decoded(buffer) {
  const mark = buffer.byteLength > 1 ? new DataView(buffer).getUint16(0) : 0;
  try {
    return new TextDecoder({ 0xfffe: "utf-16le", 0xfeff: "utf-16be" }[mark] ?? "utf-8", { fatal: true }).decode(buffer);
  } catch {
    return new TextDecoder("windows-1252").decode(buffer);
  }
}

/** Read a delimited text into `{ header, rows, notes }`; cells stay text. */
export function parse(file) {
  const text = file.replace(/\r\n?/g, "\n");
  const delimiter = delimiterOf(text.slice(0, 10000).split("\n").find((line) => line.trim()) ?? "");
  const rows = split(text, delimiter).filter((row) => row.some((cell) => cell !== ""));
  if (!rows.length) throw new BadFile("The file is empty.");
  const notes = [];
  let header = rows[0];
  const wrong = rows.findIndex((row) => row.length !== header.length);
  if (wrong > 0) throw new BadFile(`Row ${wrong + 1} (${rows[wrong].slice(0, 4).join(", ")}, …) has ${rows[wrong].length} cells, the first row has ${header.length}.`);
  const decimal = delimiter !== "," && rows.some((row) => row.some((cell) => DECIMAL_COMMA.test(cell))) ? "," : ".";
  if (header.every((cell) => cell !== "" && !Number.isNaN(toNumber(cell, decimal)))) {
    if (header.length !== CMAPSS.length) throw new BadFile(`The first line has no column names (${header.slice(0, 4).join(", ")}, …). Add a line with names.`);
    header = CMAPSS;
    notes.push("No column names, but 26 columns of numbers: read as C-MAPSS text.");
  } else rows.shift();
  if (!rows.length) throw new BadFile("The file has column names and no readings.");
  return { header: header.map((name, i) => name || `column ${i + 1}`), rows, decimal, notes };
}

function delimiterOf(line) {
  const count = (mark) => line.split(mark).length - 1;
  const best = [",", ";", "\t", "|"].sort((a, b) => count(b) - count(a))[0];
  return count(best) ? best : " ";
}

/** Split a text into rows of cells; quotes follow RFC 4180, and one within a text is a letter. */
function split(text, delimiter) {
  if (delimiter === " ") return text.split("\n").map((line) => line.trim().split(/\s+/));
  if (!text.includes('"')) return text.split("\n").map((line) => line.split(delimiter).map((cell) => cell.trim()));
  const rows = [[]];
  let cell = "";
  let quoted = false;
  let closed = false;
  for (let i = 0; i < text.length; i += 1) {
    const letter = text[i];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[i + 1] === '"') cell += text[(i += 1)];
      else [quoted, closed] = [false, true];
    } else if (letter === '"' && !closed && cell.trim() === "") quoted = true;
    else if (letter === delimiter || letter === "\n") {
      rows.at(-1).push(cell.trim());
      [cell, closed] = ["", false];
      if (letter === "\n") rows.push([]);
    } else if (closed && letter.trim()) throw new BadFile(`Row ${rows.length} has text after a quote.`);
    else cell += letter;
  }
  if (quoted) throw new BadFile(`The quote in row ${rows.length} has no end.`);
  rows.at(-1).push(cell.trim());
  return rows;
}

/** Convert a cell to a number; null if it is missing, NaN if it is no number. Beside decimal commas, 1.000 may be 1000. */
function toNumber(cell, decimal) {
  if (cell === undefined || MISSING.has(cell)) return null;
  if (TRUTHS.has(cell.toLowerCase())) return TRUTHS.get(cell.toLowerCase());
  const text = decimal === "," ? cell.replace(/[.,]/g, (sign) => (sign === "," ? "." : "?")) : cell;
  const value = NUMBER.test(text) ? Number(text) : NaN;
  return Number.isFinite(value) ? value : NaN;
}

const plain = (name) => name.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "").replace(/(\p{L})0+(?=\d)/gu, "$1");

/** Guess the columns of a file that have the unit, the cycle and each column of the model. */
export function match(header, names) {
  const at = new Map(header.map((name) => [name, name]));
  const loosely = new Map(header.map((name) => [plain(name), name]));
  const columns = Object.fromEntries(names.map((name) => [name, at.get(name) ?? loosely.get(plain(name)) ?? ""]));
  const taken = new Set(Object.values(columns));
  const find = (known) => known.map((name) => loosely.get(name)).find((name) => name && !taken.has(name)) ?? "";
  return { unit: find(UNIT_NAMES), cycle: find(CYCLE_NAMES), columns };
}

/**
 * Convert a file to units: name to `{ cycles, columns }`, cycles ascending, null = missing; `notes` list the changes.
 * Gaps are filled with missing readings, unless most of a life would be gaps.
 */
export function units({ header, rows, decimal }, matched) {
  const place = new Map(header.map((name, i) => [name, i]));
  const cell = (row, name) => (name ? row[place.get(name)] : undefined);
  const used = new Set([matched.unit, matched.cycle, ...Object.values(matched.columns)]);
  const twice = header.filter((name, i) => used.has(name) && place.get(name) !== i);
  const notes = twice.map((name) => `${name} is more than once in the first row: its last column counts.`);
  const grouped = new Map();
  for (const row of rows) {
    const name = matched.unit ? cell(row, matched.unit) || "unnamed" : "my-unit";
    if (!grouped.has(name)) grouped.set(name, []);
    grouped.get(name).push(row);
  }
  const bad = new Map();
  const value = (row, name) => {
    const found = toNumber(cell(row, name), decimal);
    if (!Number.isNaN(found)) return found;
    if (!bad.has(name)) bad.set(name, { count: 0, first: cell(row, name) });
    bad.get(name).count += 1;
    return null;
  };
  const numbered = matched.cycle && rows.every((row) => {
    const cycle = toNumber(cell(row, matched.cycle), decimal);
    return Number.isInteger(cycle) && cycle >= 0;
  });
  if (matched.cycle && !numbered) notes.push(`${matched.cycle} is not a whole number in every row: cycles are counted from 1 in the order of the file.`);
  const made = new Map();
  let [repeated, gaps, isSparse] = [0, 0, false];
  for (const [name, its] of grouped) {
    const byCycle = new Map(its.map((row, i) => [numbered ? toNumber(cell(row, matched.cycle), decimal) : i + 1, row]));
    repeated += its.length - byCycle.size;
    const known = [...byCycle.keys()].sort((a, b) => a - b);
    const span = known.at(-1) - known[0] + 1;
    const cycles = span <= 4 * known.length + 1000 ? Array.from({ length: span }, (_, i) => known[0] + i) : known;
    gaps += cycles.length - known.length;
    isSparse ||= cycles.length < span;
    const columns = {};
    for (const [column, from] of Object.entries(matched.columns)) {
      columns[column] = cycles.map((cycle) => (from && byCycle.has(cycle) ? value(byCycle.get(cycle), from) : null));
    }
    made.set(name, { cycles, columns });
  }
  if (repeated) notes.push(`Rows that repeat a cycle: ${repeated}. The last row of each cycle counts.`);
  if (isSparse) notes.push("Most cycles have no row: the model reads the rows as one cycle after the other.");
  if (gaps) notes.push(`Cycles without a row: ${gaps}. Their readings are missing.`);
  for (const [name, { count, first }] of bad) notes.push(`${name}: ${count === 1 ? "one value is not a number" : `${count} values are not numbers`}, such as “${String(first).slice(0, 24)}”; read as missing.`);
  return { units: made, notes };
}
