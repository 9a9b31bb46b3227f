import { heatIndex } from "src/pages/Skew/heat";
import type { Check, FeatureRow } from "src/pages/Skew/timeline";
import { formatRatio } from "src/pages/Skew/words";
import { instanceOf } from "src/routes";

const HEIGHT = 22;

/**
 * A cell a comparison, coloured by score and threshold; a click opens it. What was called drifted has a dot.
 *
 * A table draws hundreds of cells anew at once: they are plain elements, which `STRIPS` of the table's parent styles.
 */
export function HeatStrip({
  row,
  checks,
  times,
  chosen,
  width,
  onChoose,
}: {
  row: FeatureRow;
  checks: readonly Check[];
  /** Of the comparisons, as they are told. */
  times: readonly string[];
  /** Index of the comparison that is shown. */
  chosen: number;
  width: number;
  onChoose: (index: number) => void;
}) {
  const step = width / Math.max(checks.length, 1);
  const said = `${row.name}: beyond its threshold in ${row.driftedCount} of ${checks.length} comparisons, now ${formatRatio(row.now)} the threshold`;
  return (
    <svg width={width} height={HEIGHT} role="img" aria-label={said} data-strip="">
      {checks.map((check, index) => {
        const ratio = row.ratios[index] ?? null;
        return (
          // biome-ignore lint/a11y/noStaticElementInteractions: buttons above the table go from one to the next
          <g
            key={`${check.run_id}/${instanceOf(check)}`}
            onClick={(event) => {
              event.stopPropagation();
              onChoose(index);
            }}
          >
            <title>
              {`${times[index]}: ${ratio === null ? "not compared" : `${formatRatio(ratio)} the threshold`}${row.drifted[index] ? ", drifted" : ""}`}
            </title>
            <rect
              x={index * step + (step > 4 ? 0.5 : 0)}
              y={1.5}
              width={Math.max(step - (step > 4 ? 1 : 0), 0.5)}
              height={HEIGHT - 3}
              rx={step > 6 ? 2 : 0}
              data-heat={heatIndex(ratio) ?? "none"}
              data-chosen={index === chosen ? "" : undefined}
              opacity={check.verdict === "insufficient" ? 0.4 : 1}
            />
            {row.drifted[index] && step > 6 && <circle cx={(index + 0.5) * step} cy={HEIGHT / 2} r={1.75} />}
          </g>
        );
      })}
    </svg>
  );
}
