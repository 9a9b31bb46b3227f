import { formatNumber } from "src/format";
import { heatIndex } from "src/pages/Skew/heat";
import { type Check, type FeatureRow, ratioOf } from "src/pages/Skew/timeline";
import { instanceOf } from "src/routes";

const HEIGHT = 22;

interface Props {
  row: FeatureRow;
  checks: readonly Check[];
  /** Of the comparisons, as they are told. */
  times: readonly string[];
  /** Index of the comparison that is shown. */
  chosen: number;
  width: number;
  onChoose: (index: number) => void;
}

/**
 * A cell a comparison, coloured by how far the feature was and whether it drifted; a click opens it.
 *
 * A table draws hundreds of cells anew at once: they are plain elements, which `STRIPS` of the table's parent styles.
 */
export function HeatStrip({ row, checks, times, chosen, width, onChoose }: Props) {
  const step = width / Math.max(checks.length, 1);
  const said = `${row.name}: drifted in ${row.driftedCount} of ${checks.length} comparisons`;
  return (
    <svg width={width} height={HEIGHT} role="img" aria-label={said} data-strip="">
      {checks.map((check, index) => {
        const [score, threshold] = [row.scores[index], row.thresholds[index]];
        const drifted = row.drifted[index] ?? false;
        const heat = heatIndex(ratioOf(score, threshold), drifted, check.causes[row.name]);
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
              {`${times[index]}: ${heat === null ? "not compared" : `${drifted ? "drifted, " : ""}${formatNumber(score)}, threshold ${formatNumber(threshold)}`}`}
            </title>
            <rect
              x={index * step + (step > 4 ? 0.5 : 0)}
              y={1.5}
              width={Math.max(step - (step > 4 ? 1 : 0), 0.5)}
              height={HEIGHT - 3}
              rx={step > 6 ? 2 : 0}
              data-heat={heat ?? "none"}
              data-chosen={index === chosen ? "" : undefined}
              opacity={check.verdict === "insufficient" ? 0.4 : 1}
            />
          </g>
        );
      })}
    </svg>
  );
}
