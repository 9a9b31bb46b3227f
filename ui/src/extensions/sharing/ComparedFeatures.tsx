import { Text } from "@chakra-ui/react";
import { formatNumber, formatPercent, PlainTable } from "airflow-hops";
import type { FeatureFigures, Features } from "src/extensions/sharing/features";

const FIGURES: readonly { label: string; of: (figures: FeatureFigures) => string; end?: boolean }[] = [
  { label: "Type", of: ({ type }) => type },
  { label: "Missing", of: ({ missing }) => formatPercent(missing), end: true },
  { label: "Mean", of: ({ mean }) => (mean === null ? "" : formatNumber(mean)), end: true },
  { label: "Minimum", of: ({ min }) => (min === null ? "" : formatNumber(min)), end: true },
  { label: "Maximum", of: ({ max }) => (max === null ? "" : formatNumber(max)), end: true },
  { label: "Distinct", of: ({ unique }) => (unique === null ? "" : formatNumber(unique)), end: true },
  { label: "Most frequent", of: ({ top }) => top },
];

/** The features of a data set, and below each the same of ours, where there is one. */
export function ComparedFeatures({ theirs, ours, label }: { theirs: Features; ours: Features; label: string }) {
  const rows = [...theirs].flatMap(([name, figures]) => {
    const other = ours.get(name);
    return [
      { key: name, name: <Text fontWeight="medium">{name}</Text>, figures },
      ...(other ? [{ key: `${name} of ours`, name: <Text color="fg.muted">↳ {label}</Text>, figures: other }] : []),
    ];
  });
  return (
    <PlainTable
      label="Features"
      whiteSpace="nowrap"
      rows={rows}
      rowKey={({ key }) => key}
      columns={[
        { label: "Feature", cell: ({ name }) => name },
        ...FIGURES.map(({ of, ...heading }) => ({
          ...heading,
          cell: ({ figures }: (typeof rows)[number]) => of(figures),
        })),
      ]}
    />
  );
}
