import { Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { Schemas } from "src/api/client";
import { Choice } from "src/components/Choice";
import { formatNumber, formatPercent } from "src/format";

const TIMES = [
  ["computing", "Computing"],
  ["rows", "Waiting for rows"],
  ["exchange", "Exchange"],
] as const;

/** Rows and seconds of each rank in one of the last epochs. */
export function RankTimes({ epochs }: { epochs: Schemas["SlowestRank"][] }) {
  const [chosen, setChosen] = useState("");
  const epoch = epochs.find((each) => String(each.epoch) === chosen) ?? epochs.at(-1);
  if (!epoch) {
    return null;
  }
  const allRows = epoch.ranks.reduce((sum, rank) => sum + rank.row_count, 0);
  return (
    <>
      <Choice
        label="Rows and seconds by rank in epoch"
        value={String(epoch.epoch)}
        values={epochs.map((each) => ({ value: String(each.epoch) }))}
        onChange={setChosen}
      />
      <Table.ScrollArea tabIndex={0} mt={1.5} maxH="320px" whiteSpace="normal">
        <Table.Root size="sm" aria-label={`Ranks in epoch ${epoch.epoch}`}>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader px={1}>Rank</Table.ColumnHeader>
              <Table.ColumnHeader px={1} textAlign="end">
                Rows
              </Table.ColumnHeader>
              {TIMES.map(([name, label]) => (
                <Table.ColumnHeader key={name} px={1} textAlign="end">
                  {label}
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body fontVariantNumeric="tabular-nums">
            {epoch.ranks.map((rank, number) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: a rank is its number
              <Table.Row key={number}>
                <Table.Cell px={1} py={1} minW="60px">
                  {number}
                  <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
                    {[rank.host, number === epoch.rank ? "slowest" : ""].filter(Boolean).join(", ")}
                  </Text>
                </Table.Cell>
                <Table.Cell px={1} py={1} textAlign="end" verticalAlign="top">
                  {allRows ? formatNumber(rank.row_count) : "–"}
                  <Text fontSize="xs" color="fg.muted">
                    {allRows ? formatPercent(rank.row_count / allRows) : ""}
                  </Text>
                </Table.Cell>
                {TIMES.map(([name]) => (
                  <Table.Cell key={name} px={1} py={1} textAlign="end" verticalAlign="top">
                    {formatNumber(rank[name], 3)}
                  </Table.Cell>
                ))}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
    </>
  );
}
