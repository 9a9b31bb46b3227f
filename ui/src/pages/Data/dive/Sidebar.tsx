import { Box } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { Filters } from "src/pages/Data/dive/Filters";
import { Legend } from "src/pages/Data/dive/Legend";
import type { Placed } from "src/pages/Data/dive/placed";
import { RowPanel } from "src/pages/Data/dive/RowPanel";
import { SelectionPanel } from "src/pages/Data/dive/SelectionPanel";
import type { Placement } from "src/pages/Data/dive/settings";
import type { Rows } from "src/pages/Data/dive/useRows";

/** What the plot says: the row that is open, the selection, the colours, and the filters. */
export function Sidebar({
  features,
  rows,
  placement,
  placed,
  selected,
  opened,
  listed,
  onOpen,
  onKeep,
  onClearSelection,
}: {
  features: readonly Schemas["RowsColumn"][];
  rows: Rows;
  placement: Placement;
  placed: Placed;
  selected: Uint8Array | null;
  /** The row that is open, or -1. */
  opened: number;
  /** The rows that one goes through. */
  listed: readonly number[];
  onOpen: (row: number | null) => void;
  onKeep: (group: number) => void;
  onClearSelection: () => void;
}) {
  const place = listed.indexOf(opened);
  const step = (by: number) => {
    const next = listed[(place + by + listed.length) % Math.max(listed.length, 1)];
    if (next !== undefined) {
      onOpen(next);
    }
  };
  return (
    <Box
      width={{ md: "310px" }}
      height={{ md: "full" }}
      flexShrink={0}
      borderInlineStartWidth={{ md: 1 }}
      borderTopWidth={{ base: 1, md: 0 }}
      overflowY="auto"
    >
      {opened >= 0 && (
        <RowPanel
          row={opened}
          rows={rows}
          place={place}
          count={listed.length}
          onStep={step}
          onClose={() => onOpen(null)}
        />
      )}
      {selected && (
        <SelectionPanel
          selected={selected}
          shown={placed.shown}
          shownCount={placed.shownCount}
          rows={rows}
          onClear={onClearSelection}
          onOpen={() => onOpen(listed[0] ?? null)}
        />
      )}
      <Legend coloring={placed.coloring} shown={placed.shown} shownCount={placed.shownCount} onKeep={onKeep} />
      <Filters features={features} columns={rows.columns} rows={rows.rows} filters={placement.filters} />
    </Box>
  );
}
