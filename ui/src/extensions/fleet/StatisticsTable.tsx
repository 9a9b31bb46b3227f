import { Text } from "@chakra-ui/react";
import { formatNumber, PlainTable, Sparkline } from "airflow-hops";
import { useStatistics } from "src/extensions/fleet/queries";
import { deciles, keyInWords, type SegmentColumn } from "src/extensions/fleet/story";

/** Each column in a segment's training rows; nothing while they are read, or of a segment that has none. */
export function StatisticsTable({ dagId, model, segment }: { dagId: string; model: string; segment: string }) {
  const { data } = useStatistics(dagId, model, segment);
  if (data === undefined) {
    return null;
  }
  return (
    <>
      <Text fontWeight="medium">Training rows in version {data.version}</Text>
      <PlainTable<[string, SegmentColumn]>
        label="Statistics"
        dense
        rows={Object.entries(data.statistics)}
        rowKey={([name]) => name}
        columns={[
          { label: "Column", cell: ([name]) => name },
          { label: "Values", cell: ([name, column]) => <Values name={name} column={column} /> },
          { label: "Missing", end: true, cell: ([, { missing }]) => formatNumber(missing) },
          { label: "Mean", end: true, cell: ([, { mean }]) => formatNumber(mean) },
          { label: "Deviation", end: true, cell: ([, { deviation }]) => formatNumber(deviation) },
        ]}
      />
    </>
  );
}

/** The deciles of a number, or the most frequent values of a category. */
function Values({ name, column }: { name: string; column: SegmentColumn }) {
  const { least, greatest, values, counts } = column;
  if (least !== null && greatest !== null) {
    const tenths = deciles(column);
    const words = [least, tenths[5], greatest].map((value) => formatNumber(value)).join(" · ");
    return (
      <>
        <Sparkline values={tenths} min={least} label={`Deciles of ${name}`} />
        <Text fontSize="xs" color="fg.muted" whiteSpace="nowrap" title="Least · median · greatest">
          {words}
        </Text>
      </>
    );
  }
  const listed = values.slice(0, 3).map((value, place) => `${keyInWords(value)} (${formatNumber(counts[place])})`);
  return <Text overflowWrap="anywhere">{[...listed, ...(values.length > 3 ? ["…"] : [])].join(", ")}</Text>;
}
