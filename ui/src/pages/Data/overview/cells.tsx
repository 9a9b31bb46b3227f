import { Box, Text } from "@chakra-ui/react";
import { ERROR, WARNING } from "src/components";
import { formatNumber, formatPercent } from "src/format";
import { measureName } from "src/measures";
import { datasetPalette, INK, MAX_SHOWN } from "src/pages/Data/overview/datasets";
import { type FeatureRow, isOneSided, read } from "src/pages/Data/overview/features";

/** Pixels of a line of a cell. */
export const LINE = 18;

/** A dash where there is no number for this kind of feature is but noise. */
export const inPlace = (text: string | null) => (text === null || text === "–" ? "" : text);

const CUT = { overflow: "hidden", textOverflow: "ellipsis", height: LINE } as const;

interface Props {
  row: FeatureRow;
  line: (dataset: number) => React.ReactNode;
  /** Whether there is a line of what a data set does not have. */
  always?: boolean;
}

/** One line for each data set, in line with those of the other columns. Plain elements: there are thousands. */
export function Lines({ row, line, always = false }: Props) {
  return (
    <div style={{ lineHeight: `${LINE}px` }}>
      {row.at.map((index, dataset) => (
        <div key={datasetPalette(dataset)} style={CUT}>
          {always || index >= 0 ? line(dataset) : ""}
        </div>
      ))}
    </div>
  );
}

/** The colour of the data set that is shown at a place, of a size that {@link CELLS} gives. */
export function SwatchInCell({ index }: { index: number }) {
  return <span data-swatch data-ink={index} />;
}

/** Styles of the elements of all cells, once for the table: `data-ink` is the colour of a data set. */
export const CELLS = {
  ...Object.fromEntries(
    Array.from({ length: MAX_SHOWN }, (_, index) => [
      `& [data-ink="${index}"]`,
      { colorPalette: datasetPalette(index), color: INK },
    ]),
  ),
  "& [data-swatch]": {
    display: "inline-block",
    boxSize: "9px",
    borderRadius: "2px",
    bg: "currentColor",
    verticalAlign: "middle",
  },
  "& [data-quiet]": { color: "fg.muted" },
  "& [data-feature]": { fontWeight: "medium", overflow: "hidden", textOverflow: "ellipsis" },
  "& [data-type]": {
    display: "flex",
    alignItems: "center",
    gap: 1.5,
    height: `${LINE}px`,
    color: "fg.muted",
    fontSize: "xs",
  },
  // Wider than numbers are.
  "& [data-date]": { fontSize: "xs" },
  "& [data-base]": { stroke: "border" },
};

/** The colour of the data set that is shown at a place. */
export function Swatch({ index }: { index: number }) {
  return (
    <Box
      display="inline-block"
      boxSize="9px"
      borderRadius="2px"
      colorPalette={datasetPalette(index)}
      bg={INK}
      verticalAlign="middle"
    />
  );
}

const SECOND = { opacity: 0.7 };

/** A share, in red from what is alarming. */
export function Share({ value, alarming }: { value: number | null; alarming: number }) {
  if (value === null) {
    return null;
  }
  const text = formatShare(value);
  return value >= alarming ? (
    <Text as="span" color={ERROR} fontWeight="semibold">
      {text}
    </Text>
  ) : (
    <span data-quiet={value === 0 || undefined}>{text}</span>
  );
}

/** A digit after the point, below one another. */
function formatShare(share: number): string {
  if (share === 0 || share === 1) {
    return share ? "100%" : "0%";
  }
  return share < 0.0005 ? "<0.1%" : share > 0.9995 ? ">99.9%" : `${(100 * share).toFixed(1)}%`;
}

export function Top({ row, dataset }: { row: FeatureRow; dataset: number }) {
  const first = read(row, dataset, "top_values")?.[0];
  if (!first) {
    return null;
  }
  const [value, count] = first;
  return (
    <span title={value}>
      {value === "" ? "(empty)" : value}{" "}
      <span style={SECOND}>{formatPercent(count / (read(row, dataset, "count") || 1), 2)}</span>
    </span>
  );
}

/** Three digits after the point, below one another. */
const formatDistance = (score: number): string => (score > 0 && score < 0.0005 ? "<0.001" : score.toFixed(3));

/** How far a data set is from the first. */
export function Apart({ row, dataset, labels }: { row: FeatureRow; dataset: number; labels: readonly string[] }) {
  const pair = `From ${labels[0]} to ${labels[dataset]}`;
  const distance = row.distances[dataset];
  if (isOneSided(row, dataset)) {
    return (
      <Text as="span" color={WARNING} fontSize="sm" title={`${pair}: only one of them has this feature`}>
        one side
      </Text>
    );
  }
  if (distance?.score === null || !distance) {
    return null;
  }
  return (
    <Text
      as="span"
      title={`${pair}: ${measureName(distance.measure ?? "")}, threshold ${formatNumber(distance.threshold)}`}
      color={distance.drifted ? ERROR : undefined}
      fontWeight={distance.drifted ? "semibold" : undefined}
    >
      {formatDistance(distance.score)}
      {distance.drifted && " ▲"}
      {distance.threshold !== null && <span style={SECOND}> of {formatNumber(distance.threshold, 2)}</span>}
    </Text>
  );
}
