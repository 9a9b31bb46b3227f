import { Box, Flex, HStack, Text } from "@chakra-ui/react";
import { type RefObject, useCallback, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Schemas } from "src/api/client";
import { Amount, Empty, Segments } from "src/components";
import { useChartTheme } from "src/components/chart";
import { formatNumber, plural } from "src/format";
import { useQuery, useQueryParam } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { filtersIn, formatFilter } from "src/pages/Data/dive/filters";
import { Labelled } from "src/pages/Data/dive/Labelled";
import { Plot } from "src/pages/Data/dive/Plot";
import type { Tool } from "src/pages/Data/dive/PlotTools";
import type { Place } from "src/pages/Data/dive/picking";
import { usePlaced, useSelected } from "src/pages/Data/dive/placed";
import { RowTable } from "src/pages/Data/dive/RowTable";
import { Sidebar } from "src/pages/Data/dive/Sidebar";
import { DEFAULT_JITTER, featuresOf, formatSelection, numberIn, type Placement } from "src/pages/Data/dive/settings";
import type { Shown } from "src/pages/Data/dive/shown";
import { textOf } from "src/pages/Data/dive/text";
import type { Rows } from "src/pages/Data/dive/useRows";

/** Height of the plot where what it says stands below it. */
const PHONE_PX = 420;

/** The rows of a split as plot or table, and what they say beside it. */
export function Picture({
  placement,
  features,
  rows,
}: {
  placement: Placement;
  features: readonly Schemas["RowsColumn"][];
  rows: Rows;
}) {
  const [query, change] = useQuery();
  const selection = query.get("select") ?? "";
  const frame = useRef<HTMLDivElement>(null);
  const height = useRestOfWindow(frame);
  const { columns, source, rows: size } = rows;
  const theme = useChartTheme();
  const [aspect, setAspect] = useState(1.6);
  const [display, setDisplay] = useQueryParam("display", "plot");
  const [tool, setTool] = useQueryParam("tool", "pan");
  const placed = usePlaced(placement, columns, size, aspect);
  const selected = useSelected(selection, columns, size);
  const opened = query.has("row") ? numberIn(query.get("row"), -1, -1, size - 1) : -1;
  const shown = useMemo(
    (): Shown => ({ ...placed, chosen: selected, opened: opened < 0 ? null : opened, theme }),
    [placed, selected, opened, theme],
  );
  // Those that one goes through, and that the table shows: what is selected of what is shown.
  const listed = useMemo(() => {
    const list: number[] = [];
    for (let row = 0; row < size; row++) {
      if (placed.shown[row] && (!selected || selected[row])) {
        list.push(row);
      }
    }
    return list;
  }, [size, placed.shown, selected]);
  const open = useCallback((row: number | null) => change({ row: row === null ? null : String(row) }), [change]);
  const select = (outline: readonly Place[]) =>
    change({ select: formatSelection({ placement, aspect, outline }) }, { push: true });
  const keep = (group: number) => {
    const { groups } = placed.coloring;
    if (groups) {
      const value = group === groups.missing ? null : (groups.keys[group] ?? null);
      const { name } = groups.column;
      change(
        (address) => {
          const others = filtersIn(address).filter((each) => each.name !== name);
          const mine = filtersIn(address).find((each) => each.name === name);
          const only = mine?.values?.length === 1 && mine.values[0] === value;
          return { filter: (only ? others : [...others, { name, values: [value] }]).map(formatFilter) };
        },
        { push: true },
      );
    }
  };
  return (
    <Box borderWidth={1} borderRadius="md" overflow="hidden" aria-busy={!rows.whole && rows.error === null}>
      <HStack px={3} py={1.5} gap={3} borderBottomWidth={1} wrap="wrap">
        <Text fontSize="sm" data-dive="summary">
          <SamplingNote rows={size} totalRows={rows.totalRows} split={source.split} shownCount={placed.shownCount} />
        </Text>
        <HStack marginInlineStart="auto" gap={2} wrap="wrap">
          {display !== "table" && (
            <Labelled label="Jitter">
              <Amount
                size="sm"
                width="72px"
                label="Jitter"
                min={0}
                max={1}
                step={0.1}
                value={placement.jitter}
                onChange={(value) => change({ jitter: value === DEFAULT_JITTER ? null : String(value) })}
              />
            </Labelled>
          )}
          <Segments
            size="xs"
            label="View"
            value={display}
            onChange={setDisplay}
            items={[
              ["plot", "Plot"],
              ["table", "Table"],
            ]}
          />
        </HStack>
      </HStack>
      <Flex ref={frame} direction={{ base: "column", md: "row" }} height={{ md: `${height}px` }}>
        <Box
          flex={{ md: 1 }}
          height={{ base: display === "table" ? "auto" : `${PHONE_PX}px`, md: "full" }}
          minW={0}
          p={display === "table" ? 2 : 0}
        >
          {placed.shownCount === 0 ? (
            <Empty title="No row matches the filters">Widen or remove a filter.</Empty>
          ) : display === "table" ? (
            <RowTable
              rows={listed}
              columns={columns}
              opened={opened < 0 ? null : opened}
              onOpen={open}
              height={`${height - 66}px`}
            />
          ) : (
            <Plot
              height="full"
              shown={shown}
              view={query.get("view") ?? ""}
              tool={isTool(tool) ? tool : "pan"}
              label={`${plural(placed.shownCount, "row")} of ${source.split} by ${placement.x || "nothing"} and ${placement.y || "nothing"}, coloured by ${placement.color || "nothing"}. The table shows the same rows.`}
              rowCount={placed.shownCount}
              onView={(view) => change({ view: view || null })}
              onTool={setTool}
              onSelect={select}
              onOpen={open}
              onClear={() => change({ select: null, row: null })}
              onResize={setAspect}
              tooltip={(row) => <HoverText row={row} rows={rows} placement={placement} />}
            />
          )}
        </Box>
        <Sidebar
          features={features}
          rows={rows}
          placement={placement}
          placed={placed}
          selected={selected}
          opened={opened}
          listed={listed}
          onOpen={open}
          onKeep={keep}
          onClearSelection={() => change({ select: null })}
        />
      </Flex>
    </Box>
  );
}

const isTool = (text: string): text is Tool => text === "pan" || text === "box";

/** A row's values of the features that the plot shows. */
function HoverText({ row, rows, placement }: { row: number; rows: Rows; placement: Placement }) {
  const zone = useTimezone();
  const { columns } = rows;
  const shown = featuresOf({ ...placement, filters: [] }).flatMap((name) => columns.get(name) ?? []);
  return (
    <>
      {shown.map((column) => (
        <HStack key={column.name} gap={3} justify="space-between">
          <Text color="fg.muted" truncate>
            {column.name}
          </Text>
          <Text fontVariantNumeric="tabular-nums" truncate>
            {textOf(column, column.values[row] ?? Number.NaN, zone)}
          </Text>
        </HStack>
      ))}
    </>
  );
}

/** How many rows there are, how many of them came, and how many are shown. */
function SamplingNote({
  rows,
  totalRows,
  split,
  shownCount,
}: {
  rows: number;
  totalRows: number;
  split: string;
  shownCount: number;
}) {
  const sampled =
    rows < totalRows
      ? `${formatNumber(rows)} of ${formatNumber(totalRows)} rows of ${split}, drawn at random`
      : `all ${formatNumber(rows)} rows of ${split}`;
  return shownCount < rows ? (
    <>
      <b>{formatNumber(shownCount)} shown</b> · {sampled}
    </>
  ) : (
    sampled
  );
}

const LEAST_PX = 420;
const BELOW_PX = 16;

/** Where an element begins in the page, however far that is scrolled. */
function topOf(element: HTMLElement): number {
  let top = 0;
  for (let each: HTMLElement | null = element; each; each = each.offsetParent as HTMLElement | null) {
    top += each.offsetTop;
  }
  return top;
}

/** The height in pixels with which an element reaches the window's end; what stands above it may change. */
function useRestOfWindow(element: RefObject<HTMLElement | null>): number {
  const [height, setHeight] = useState(LEAST_PX);
  // After each rendering: it costs little, and nothing says when what stands above has changed.
  useLayoutEffect(() => {
    const measure = () => {
      if (element.current) {
        setHeight(Math.max(window.innerHeight - topOf(element.current) - BELOW_PX, LEAST_PX));
      }
    };
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  });
  return height;
}
