import { Box, HStack, Progress, Text } from "@chakra-ui/react";
import {
  type Column,
  column,
  DataTable,
  FilterBar,
  formatBytes,
  formatCount,
  formatPercent,
  numberColumn,
  plural,
  SearchInput,
  StateBadge,
} from "airflow-hops";
import { BADGES, formatRate, fullName, type SharedDataset, shareDone, stateOf } from "src/extensions/sharing/words";

const COLUMNS: readonly Column<SharedDataset>[] = [
  { key: "name", label: "Data set", fixed: true, width: 170, value: fullName },
  { key: "state", label: "State", width: 210, value: stateOf, render: (row) => <StateCell row={row} /> },
  column("description", "Description", {
    width: 200,
    value: (row) => row.description,
    render: (row) => <span title={row.description}>{row.description}</span>,
  }),
  { key: "licence", label: "Licence", value: (row) => row.licence },
  numberColumn("rows", "Rows", (row) => row.rows, { format: formatCount }),
  numberColumn("size", "Size", (row) => row.size_bytes, { format: formatBytes }),
  numberColumn("down", "From peers", (row) => row.transfer?.down_bytes_s, { format: formatRate }),
  numberColumn("up", "To peers", (row) => row.transfer?.up_bytes_s, { format: formatRate }),
  column("peers", "Peers", {
    value: (row) => row.transfer?.peers.length ?? 0,
    render: (row) => [...new Set(row.transfer?.peers.map((peer) => peer.organisation))].join(", "),
  }),
];

interface Props {
  rows: readonly SharedDataset[];
  opened: string;
  onOpen: (name: string) => void;
}

/** All data sets that are known, ours first; the search is that of the API. */
export function DatasetTable({ rows, opened, onOpen }: Props) {
  return (
    <DataTable
      label="Data sets"
      rows={rows}
      rowKey={fullName}
      columns={COLUMNS}
      opened={opened || null}
      onOpen={(row) => onOpen(fullName(row))}
      maxHeight="50vh"
      toolbar={
        <FilterBar summary={plural(rows.length, "data set")}>
          <SearchInput placeholder="Words, or rows>1000 delay.mean>5" />
        </FilterBar>
      }
    />
  );
}

function StateCell({ row }: { row: SharedDataset }) {
  const state = stateOf(row);
  return (
    <HStack gap={2}>
      <StateBadge state={BADGES[state] ?? "none"}>{state}</StateBadge>
      {["downloading", "storing"].includes(state) && (
        <>
          <Box flex={1} minW="40px">
            <Progress.Root value={100 * shareDone(row)} size="sm" aria-label={`${fullName(row)}: done`}>
              <Progress.Track>
                <Progress.Range />
              </Progress.Track>
            </Progress.Root>
          </Box>
          <Text fontSize="xs">{formatPercent(shareDone(row), 2)}</Text>
        </>
      )}
    </HStack>
  );
}
