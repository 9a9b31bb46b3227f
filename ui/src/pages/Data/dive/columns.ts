/** Rows as columns of typed arrays: the bytes that `/rows` sends, and what is known of each column. */

/** One feature of all sampled rows. */
export interface Column {
  name: string;
  /** `number`: NaN where it is missing. `time`: milliseconds since the epoch, likewise. `category`: an index into `words`, or -1. */
  role: "number" | "time" | "category";
  values: Int8Array | Int16Array | Int32Array | Float32Array | Float64Array;
  /** The values of a category, the most frequent first; of a boolean `false` and `true`. */
  words: readonly string[];
  nulls: number;
}

/** The answer of `/rows`. */
export interface Sample {
  rows: number;
  totalRows: number;
  columns: Column[];
}

interface Header {
  rows: number;
  total_rows: number;
  columns: {
    name: string;
    /** Arrow's type. */
    kind: string;
    /** Null where the values cannot be sent; then there are none. */
    role: "number" | "category" | "boolean" | "time" | null;
    type?: keyof typeof ARRAYS;
    offset: number;
    nulls: number;
    /** Offset and length of the words of a category, in JSON. */
    words?: [number, number];
  }[];
}

const ARRAYS = {
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  float32: Float32Array,
  float64: Float64Array,
} as const;

/** Reads the bytes (`airflow_hops/core/artifacts/page_files.py` says how they lie). */
export function decode(buffer: ArrayBuffer): Sample {
  const length = new DataView(buffer).getUint32(0, true);
  const data = 4 + length;
  const read = (start: number, bytes: number) =>
    JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start, bytes))) as unknown;
  const header = read(4, length) as Header;
  const columns = header.columns.flatMap(({ name, type, offset, role, nulls, words }): Column[] => {
    if (role === null || type === undefined) {
      return [];
    }
    const array = new ARRAYS[type](buffer, data + offset, header.rows);
    const known = words ? (read(data + words[0], words[1]) as string[]) : [];
    return [
      {
        name,
        role: role === "boolean" ? "category" : role,
        values: array,
        words: role === "boolean" ? ["false", "true"] : known,
        nulls: role === "number" ? countNaN(array) : nulls,
      },
    ];
  });
  return { rows: header.rows, totalRows: header.total_rows, columns };
}

/** How many numbers are missing: a NaN that was written as such is no value either. */
function countNaN(values: Iterable<number>): number {
  let count = 0;
  for (const value of values) {
    count += Number.isNaN(value) ? 1 : 0;
  }
  return count;
}

/** Seconds since the epoch, which the pipeline says that a column holds, as times. */
export function asTime(column: Column): Column {
  return column.role === "number"
    ? { ...column, role: "time", values: Float64Array.from(column.values, (seconds) => seconds * 1000) }
    : column;
}

/** Numbers of classes, which the pipeline has names for, as those names. */
export function asClasses(column: Column, names: readonly string[]): Column {
  if (column.role !== "number" || names.length === 0) {
    return column;
  }
  const values = Int32Array.from(column.values, (number) => (number >= 0 && number < names.length ? number : -1));
  return { ...column, role: "category", words: names, values, nulls: values.filter((number) => number < 0).length };
}

/** What is known of a column's values; range and moments are those of the finite ones. */
export interface Facts {
  min: number;
  max: number;
  /** The different values in order, where there are at most {@link FEW}; else null. Of numbers alone. */
  distinct: readonly number[] | null;
  integers: boolean;
  mean: number;
  deviation: number;
}

const FEW = 64;
const known = new WeakMap<Column, Facts>();

/** Range, moments and, of few, the different values of a column; of a category those of its indices. */
export function factsOf(column: Column): Facts {
  const before = known.get(column);
  if (before) {
    return before;
  }
  const distinct = new Set<number>();
  let min = Number.POSITIVE_INFINITY;
  let max = Number.NEGATIVE_INFINITY;
  let integers = true;
  let count = 0;
  let mean = 0;
  let squares = 0;
  for (const value of column.values) {
    if (isMissing(column, value)) {
      continue;
    }
    if (Number.isFinite(value)) {
      count += 1;
      const off = value - mean;
      mean += off / count;
      squares += off * (value - mean);
      min = value < min ? value : min;
      max = value > max ? value : max;
    }
    integers = integers && Number.isInteger(value);
    if (distinct.size <= FEW) {
      distinct.add(value);
    }
  }
  const facts: Facts = {
    min: count ? min : 0,
    max: count ? max : 0,
    distinct: distinct.size <= FEW ? [...distinct].sort((a, b) => a - b) : null,
    integers,
    mean: count ? mean : Number.NaN,
    deviation: count ? Math.sqrt(squares / count) : Number.NaN,
  };
  known.set(column, facts);
  return facts;
}

/** Whether a value of a column stands for none. */
export function isMissing(column: Column, value: number): boolean {
  return column.role === "category" ? value < 0 : Number.isNaN(value);
}

/** The value of a row: a number, a text or null; times in ISO 8601. */
export function valueAt(column: Column, row: number): string | number | null {
  const value = column.values[row] ?? Number.NaN;
  if (isMissing(column, value)) {
    return null;
  }
  if (column.role === "category") {
    return column.words[value] ?? null;
  }
  return column.role === "time" ? new Date(value).toISOString() : value;
}

/** Whether a column has a few values that stand for themselves: a category, or a handful of whole numbers. */
export function isDiscrete(column: Column, atMost = 12): boolean {
  if (column.role === "category") {
    return true;
  }
  const { distinct, integers } = factsOf(column);
  return column.role === "number" && integers && distinct !== null && distinct.length <= atMost;
}
