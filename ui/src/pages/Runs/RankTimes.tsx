import { Box, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { Schemas } from "src/api/client";
import { Choice, PlainTable } from "src/components";
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
      <Box mt={1.5} maxH="320px" overflowY="auto">
        <PlainTable
          label={`Ranks in epoch ${epoch.epoch}`}
          dense
          rows={epoch.ranks.map((rank, number) => ({ ...rank, number }))}
          rowKey={({ number }) => number}
          columns={[
            {
              label: "Rank",
              cell: ({ host, number }) => (
                <>
                  {number}
                  <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
                    {[host, number === epoch.rank ? "slowest" : ""].filter(Boolean).join(", ")}
                  </Text>
                </>
              ),
            },
            {
              label: "Rows",
              end: true,
              cell: ({ row_count }) =>
                allRows > 0 && (
                  <>
                    {formatNumber(row_count)}
                    <Text fontSize="xs" color="fg.muted">
                      {formatPercent(row_count / allRows)}
                    </Text>
                  </>
                ),
            },
            ...TIMES.map(([name, label]) => ({
              label,
              end: true,
              cell: (rank: Schemas["SlowestRank"]["ranks"][number]) => formatNumber(rank[name], 3),
            })),
          ]}
        />
      </Box>
    </>
  );
}
