import { Box, Table, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { type Column, DataTable, numberColumn, PlainTable } from "src/components";
import { formatNumber, formatPercent } from "src/format";
import { type ClassRow, classesOf, confusionOf, type Figures, mistakesOf } from "src/pages/Models/figures";

/** Classes up to which the matrix has room; of more, the most frequent mistakes are listed. */
const MATRIX_CLASSES = 20;
const LISTED = 15;

interface Row extends ClassRow {
  champion: ClassRow | undefined;
}

/** Each class: how many of its rows are found, and how many of those said to be of it are. */
export function ClassTable({ candidate, champion }: { candidate: Figures; champion: Figures | null }) {
  const rows = useMemo(() => {
    const theirs = new Map(classesOf(champion).map((each) => [each.name, each]));
    return classesOf(candidate).map((each): Row => ({ ...each, champion: theirs.get(each.name) }));
  }, [candidate, champion]);
  const columns = useMemo(() => columnsFor(champion !== null), [champion]);
  return (
    <DataTable
      label="Figures by class"
      name="class"
      rows={rows}
      rowKey={({ name }) => name}
      initialSort={{ column: "rows", descending: true }}
      maxHeight="40vh"
      columns={columns}
    />
  );
}

function columnsFor(hasChampion: boolean): Column<Row>[] {
  const share = { width: 95, descendingFirst: false, format: formatPercent };
  const [recall, precision, f1] = [
    "Share of the rows of the class that are predicted as it",
    "Share of the rows predicted as the class that belong to it",
    "Harmonic mean of recall and precision",
  ];
  return [
    { key: "name", label: "Class", fixed: true, width: 120, value: ({ name }) => name },
    numberColumn("rows", "Rows", ({ rows }) => rows, { width: 80 }),
    numberColumn("recall", "Recall", (row) => row.recall, { ...share, help: recall }),
    numberColumn("precision", "Precision", (row) => row.precision, { ...share, help: precision }),
    numberColumn("f1", "F1", (row) => row.f1, { ...share, help: f1 }),
    ...(hasChampion
      ? [
          numberColumn("champion", "Champion's F1", (row: Row) => row.champion?.f1, {
            ...share,
            help: "On the same rows",
          }),
        ]
      : []),
    numberColumn("auc", "AUC", (row) => row.auc, { width: 95, help: "Of the class against the rest" }),
  ];
}

/** What the rows of each class are said to be: a row a class, shaded by the share of its rows. */
export function ConfusionMatrix({ figures }: { figures: Figures }) {
  const names = classesOf(figures).map(({ name }) => name);
  const confusion = confusionOf(figures);
  if (confusion.length === 0) {
    return <Text color="fg.muted">There is no confusion matrix for more than a hundred classes.</Text>;
  }
  return names.length > MATRIX_CLASSES ? (
    <Mistakes names={names} confusion={confusion} />
  ) : (
    <Table.ScrollArea tabIndex={0} borderWidth={1} borderRadius="md" maxWidth="full">
      <Table.Root size="sm" aria-label="Confusion matrix" fontVariantNumeric="tabular-nums">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader fontSize="xs" color="fg.muted">
              actual ↓ predicted →
            </Table.ColumnHeader>
            {names.map((name) => (
              <Table.ColumnHeader key={name} textAlign="end" maxWidth="110px" truncate title={name}>
                {name}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {confusion.map((row, of) => {
            const total = row.reduce((sum, count) => sum + count, 0);
            return (
              <Table.Row key={names[of]}>
                <Table.Cell fontWeight="medium" maxWidth="140px" truncate title={names[of]}>
                  {names[of]}
                </Table.Cell>
                {row.map((count, as) => (
                  <Cell key={names[as]} count={count} share={total ? count / total : 0} right={of === as} />
                ))}
              </Table.Row>
            );
          })}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}

function Cell({ count, share, right }: { count: number; share: number; right: boolean }) {
  return (
    <Table.Cell textAlign="end" position="relative" px={2} title={`${formatPercent(share)} of the rows of the class`}>
      <Box
        position="absolute"
        inset={0}
        bg={right ? "green.solid" : "red.solid"}
        opacity={share * 0.5}
        aria-hidden
        pointerEvents="none"
      />
      <Text as="span" position="relative" color={count === 0 ? "fg.muted" : undefined}>
        {formatNumber(count)}
      </Text>
    </Table.Cell>
  );
}

function Mistakes({ names, confusion }: { names: readonly string[]; confusion: readonly (readonly number[])[] }) {
  const found = mistakesOf(names, confusion).slice(0, LISTED);
  return (
    <PlainTable
      label="Most frequent mistakes"
      rows={found}
      rowKey={({ name, said }) => `${name} ${said}`}
      columns={[
        { label: "Actual", cell: ({ name }) => name },
        { label: "Predicted", cell: ({ said }) => said },
        { label: "Rows", end: true, cell: ({ rows }) => formatNumber(rows) },
        { label: "Of the class", end: true, cell: ({ share }) => formatPercent(share) },
      ]}
    />
  );
}
