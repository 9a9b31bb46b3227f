import { Box, chakra, HStack, IconButton, Table, VisuallyHidden } from "@chakra-ui/react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type KeyboardEvent, memo, type ReactNode, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { LuArrowDown, LuArrowUp, LuChevronsUpDown } from "react-icons/lu";
import { Choice } from "src/components/Choice";
import { ColumnChoice } from "src/components/ColumnChoice";
import { type Column, shownOf, sortRows, widthsOf } from "src/components/table";
import { type Sort, ticked, useQueryList, useSort } from "src/hooks/useQueryState";

const TICK_WIDTH = 36;
/** Rows that are drawn beyond those in sight. */
const OVERSCAN = 5;
/** Of all rows at once: a component for each cell would take longer to style than to draw. */
const BODY = {
  "& tr[data-index] > td": {
    px: 2,
    borderBottomWidth: "1px",
    overflow: "hidden",
    textOverflow: "ellipsis",
    whiteSpace: "nowrap",
  },
  "& tr[data-index] > td > a": { display: "inline" }, // the host's inline-flex would be cut off without an ellipsis
  "& time > span": { display: "none" },
  "& tr[data-marked]": { bg: "brand.subtle" },
  "& tr:focus-visible": { outline: "2px solid", outlineColor: "brand.focusRing", outlineOffset: "-2px" },
};

/** Pixels below which rows are cards, where the page wants that. */
const NARROW = 480;
const CARDS = {
  "& thead": { display: "none" },
  "&, & tbody": { display: "block" },
  "& tr[data-index]": {
    display: "grid",
    gridTemplateColumns: "1fr 1fr",
    position: "relative",
    borderBottomWidth: "1px",
  },
  "& tr[data-index] > td": { px: 2, py: 1, borderWidth: 0, minWidth: 0, textAlign: "start !important" },
  "& td:not([data-label])": { gridColumn: "1 / -1", pe: "36px" },
  "& td[data-label]::before": { content: "attr(data-label)", display: "block", fontSize: "xs", color: "fg.muted" },
  "& td[data-tick]": { position: "absolute", top: 1, insetEnd: 0, pe: 2 },
};

interface Props<Row> {
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  rowKey: (row: Row) => string;
  /** What the rows are: for those who hear the table. */
  label: string;
  initialSort?: Sort;
  /** Prefix of the table's names in the address, where a page has several tables. */
  name?: string;
  /** Whether the rows come sorted as the address says (see `useSort`): nothing is sorted here. */
  sorted?: boolean;
  /** Pixels of a row; rows do not wrap. */
  rowHeight?: number;
  /** Whether rows become cards on a phone. */
  cards?: boolean;
  /** CSS height beyond which the table scrolls. */
  maxHeight?: string;
  selected?: ReadonlySet<string>;
  /** Changes the selection, which may have changed since it was rendered; with it rows have a box to tick. */
  onSelect?: (change: (keys: readonly string[]) => string[]) => void;
  /** Opens a row: by click, or Enter. */
  onOpen?: (row: Row) => void;
  /** The key of the row that is open. */
  opened?: string | null;
  /** Called when the last row comes into sight: where there are more to be fetched. */
  onEnd?: () => void;
  /** Left of the choice of columns: filters. */
  toolbar?: ReactNode;
}

/** Rows that are sorted, whose columns are chosen, and of which only those in sight are drawn. */
export function DataTable<Row>(props: Props<Row>) {
  const {
    rows,
    columns,
    rowKey,
    label,
    name = "",
    rowHeight = 38,
    maxHeight = "65vh",
    selected,
    onSelect,
    onOpen,
  } = props;
  const [sort, setSort] = useSort(`${name}sort`, props.initialSort ?? null);
  const [chosen, setChosen] = useQueryList(`${name}columns`);
  const shown = useMemo(() => shownOf(columns, chosen), [columns, chosen]);
  const ordered = useMemo(
    () => (props.sorted ? rows : sortRows(rows, columns, sort)),
    [rows, columns, sort, props.sorted],
  );
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: ordered.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan: OVERSCAN,
  });
  const [active, setActive] = useState(0);
  const items = virtual.getVirtualItems();
  const above = items[0]?.start ?? 0;
  const below = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  const span = shown.length + (onSelect ? 1 : 0);
  // The virtualizer's own width has the border and a scroll bar in it.
  const room = scroller.current?.clientWidth ?? 0;
  const cards = props.cards && room > 0 && room < NARROW;
  const widths = widthsOf(shown, room - (onSelect ? TICK_WIDTH : 0));
  const minWidth = widths.reduce((sum, width) => sum + width, onSelect ? TICK_WIDTH : 0);

  // biome-ignore lint/correctness/useExhaustiveDependencies: cards have other heights than rows, measured after this
  useLayoutEffect(() => virtual.measure(), [cards]);
  const atEnd = ordered.length > 0 && items.at(-1)?.index === ordered.length - 1;
  const { onEnd } = props;
  useEffect(() => {
    if (atEnd) {
      onEnd?.();
    }
  }, [atEnd, onEnd]);

  const toggle = (key: string) => onSelect?.((keys) => ticked(keys, key, !keys.includes(key)));
  const focusRow = (index: number) => {
    const to = Math.min(Math.max(index, 0), ordered.length - 1);
    setActive(to);
    virtual.scrollToIndex(to);
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`[data-index="${to}"]`)?.focus());
  };
  const onKeyDown = (event: KeyboardEvent<HTMLElement>) => {
    // The row that has the focus: it takes that along to another place when the rows are put in another order.
    const place = Number(event.target instanceof HTMLElement ? event.target.dataset.index : undefined);
    const row = ordered[place];
    if (row === undefined) {
      return;
    }
    const page = Math.max(Math.floor((scroller.current?.clientHeight ?? 0) / rowHeight) - 2, 1);
    const moves: Record<string, number> = {
      ArrowDown: place + 1,
      ArrowUp: place - 1,
      PageDown: place + page,
      PageUp: place - page,
      Home: 0,
      End: ordered.length - 1,
    };
    const to = moves[event.key];
    if (to !== undefined) {
      focusRow(to);
    } else if (event.key === "Enter" && onOpen) {
      onOpen(row);
    } else if (event.key === " " && onSelect) {
      toggle(rowKey(row));
    } else {
      return;
    }
    event.preventDefault();
  };

  const selectAll = onSelect && (
    <Tick
      label="Select all"
      checked={ordered.length > 0 && ordered.every((row) => selected?.has(rowKey(row)))}
      onChange={(checked) => onSelect(() => (checked ? ordered.map(rowKey) : []))}
    />
  );
  return (
    <Box>
      <HStack mb={2} gap={2} align="flex-start">
        <Box flex={1} minWidth={0}>
          {props.toolbar}
        </Box>
        {columns.length > 3 && <ColumnChoice columns={columns} shown={shown} onChange={setChosen} />}
      </HStack>
      {cards && (
        <HStack mb={2} gap={4} wrap="wrap" fontSize="sm">
          <SortChoice columns={columns} sort={sort} onSort={setSort} />
          {selectAll && <HStack as="label">{selectAll} Select all</HStack>}
        </HStack>
      )}
      <Box ref={scroller} maxHeight={maxHeight} overflow="auto" borderWidth={1} borderRadius="md" onKeyDown={onKeyDown}>
        <Table.Root
          size="sm"
          stickyHeader
          interactive={Boolean(onOpen)}
          aria-label={label}
          aria-rowcount={ordered.length + 1}
          tableLayout="fixed"
          minWidth={cards ? undefined : `${minWidth}px`}
          css={cards ? CARDS : undefined}
        >
          <Table.Header>
            <Table.Row aria-rowindex={1}>
              {selectAll && <Table.ColumnHeader width={`${TICK_WIDTH}px`}>{selectAll}</Table.ColumnHeader>}
              {shown.map((column, place) => (
                <Heading key={column.key} column={column} width={widths[place]} sort={sort} onSort={setSort} />
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body css={BODY} onMouseOver={(event) => titleIfCut(event.target)}>
            {above > 0 && <Gap height={above} cells={span} />}
            {items.map(({ index }) => {
              const row = ordered[index];
              if (row === undefined) {
                return null;
              }
              const key = rowKey(row);
              return (
                <tr
                  key={key}
                  ref={cards ? virtual.measureElement : undefined}
                  data-index={index}
                  data-marked={props.opened === key || selected?.has(key) ? "" : undefined}
                  aria-rowindex={index + 2}
                  aria-selected={onSelect ? selected?.has(key) : undefined}
                  aria-current={props.opened === key || undefined}
                  style={{ height: cards ? undefined : rowHeight, cursor: onOpen && "pointer" }}
                  tabIndex={index === active ? 0 : -1}
                  onFocus={() => setActive(index)}
                  onClick={onOpen && ((event) => !isControl(event.target) && onOpen(row))}
                >
                  {onSelect && (
                    // biome-ignore lint/a11y/useKeyWithClickEvents: it only keeps clicks beside the box from the row
                    <td data-tick onClick={(event) => event.stopPropagation()}>
                      <Tick
                        label={`Select ${key}`}
                        checked={selected?.has(key) ?? false}
                        onChange={() => toggle(key)}
                      />
                    </td>
                  )}
                  <Cells row={row} columns={shown} />
                </tr>
              );
            })}
            {below > 0 && <Gap height={below} cells={span} />}
          </Table.Body>
        </Table.Root>
      </Box>
    </Box>
  );
}

/** Has an element whose text is cut off say all of it to who points at it. */
function titleIfCut(target: EventTarget) {
  if (target instanceof HTMLElement && target.scrollWidth > target.clientWidth && !target.closest("tbody [title]")) {
    target.title = target.innerText;
  }
}

/** Whether a click was meant for a link or a button in a row, and not for the row. */
function isControl(target: EventTarget): boolean {
  return target instanceof Element && target.closest("a, button, input, select, label") !== null;
}

/** Stands for the rows out of sight. */
function Gap({ height, cells }: { height: number; cells: number }) {
  return (
    <tr aria-hidden style={{ height }}>
      <td colSpan={cells} style={{ padding: 0 }} />
    </tr>
  );
}

function Tick({ label, checked, onChange }: { label: string; checked: boolean; onChange: (checked: boolean) => void }) {
  return (
    <chakra.input
      type="checkbox"
      aria-label={label}
      checked={checked}
      accentColor="brand.solid"
      verticalAlign="middle"
      onChange={(event) => onChange(event.currentTarget.checked)}
    />
  );
}

interface SortProps {
  sort: Sort | null;
  onSort: (sort: Sort | null) => void;
}

/** What cards, which have no headings, are sorted by. */
function SortChoice<Row>({ columns, sort, onSort }: SortProps & { columns: readonly Column<Row>[] }) {
  const values = columns.filter(({ value }) => value).map(({ key, label }) => ({ value: key, label }));
  const first = (key: string) => columns.find((each) => each.key === key)?.descendingFirst ?? false;
  return (
    <HStack>
      <Choice
        label="Sort by"
        value={sort?.column ?? ""}
        values={[{ value: "", label: "nothing" }, ...values]}
        onChange={(key) => onSort(key ? { column: key, descending: first(key) } : null)}
      />
      {sort && (
        <IconButton
          size="xs"
          variant="outline"
          aria-label={sort.descending ? "Descending: sort ascending" : "Ascending: sort descending"}
          onClick={() => onSort({ ...sort, descending: !sort.descending })}
        >
          {sort.descending ? <LuArrowDown /> : <LuArrowUp />}
        </IconButton>
      )}
    </HStack>
  );
}

function Heading<Row>(props: SortProps & { column: Column<Row>; width: number | undefined }) {
  const { column, width, sort, onSort } = props;
  const current = sort?.column === column.key ? sort : null;
  const first = column.descendingFirst ?? false;
  // Once, the other way round, and as it was.
  const next =
    current === null ? { column: column.key, descending: first } : { ...current, descending: !current.descending };
  const Arrow = current === null ? LuChevronsUpDown : current.descending ? LuArrowDown : LuArrowUp;
  return (
    <Table.ColumnHeader
      width={`${width}px`}
      textAlign={column.align}
      title={column.help ?? column.label}
      whiteSpace="nowrap"
      overflow="hidden"
      aria-sort={current === null || !column.value ? undefined : current.descending ? "descending" : "ascending"}
    >
      {column.value ? (
        <chakra.button
          type="button"
          display="inline-flex"
          alignItems="center"
          gap={1}
          maxWidth="full"
          cursor="pointer"
          color={current ? "fg" : undefined}
          onClick={() => onSort(current !== null && current.descending !== first ? null : next)}
        >
          <chakra.span truncate>{column.label}</chakra.span>
          <chakra.span color={current ? "fg" : "fg.subtle"} flexShrink={0} aria-hidden>
            <Arrow size={12} />
          </chakra.span>
        </chakra.button>
      ) : column.quiet ? (
        <VisuallyHidden>{column.label}</VisuallyHidden>
      ) : (
        column.label
      )}
    </Table.ColumnHeader>
  );
}

const TO_THE_END = { textAlign: "end", fontVariantNumeric: "tabular-nums" } as const;

interface CellsProps<Row> {
  row: Row;
  columns: readonly Column<Row>[];
}

function CellsOf<Row>({ row, columns }: CellsProps<Row>): ReactNode {
  return columns.map(({ key, label, align, value, render }, place) => (
    <td key={key} data-label={place > 0 ? label : undefined} style={align === "end" ? TO_THE_END : undefined}>
      {render ? render(row) : (value?.(row) ?? "–")}
    </td>
  ));
}

/** The cells of a row; drawn again only for another row or other columns. */
const Cells = memo(CellsOf) as typeof CellsOf;
