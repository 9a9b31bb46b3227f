import { formatNumber } from "src/format";

/** How many rows there are, how many of them came, and how many are shown. */
export function SamplingNote({
  rows,
  totalRows,
  split,
  shownCount,
}: {
  rows: number;
  totalRows: number;
  split: string;
  shownCount: number;
}) {
  const sampled =
    rows < totalRows
      ? `${formatNumber(rows)} of ${formatNumber(totalRows)} rows of ${split}, drawn at random`
      : `all ${formatNumber(rows)} rows of ${split}`;
  return shownCount < rows ? (
    <>
      <b>{formatNumber(shownCount)} shown</b> · {sampled}
    </>
  ) : (
    sampled
  );
}
