import { Box, HStack, Input, Text } from "@chakra-ui/react";
import { type PointerEvent, useMemo, useRef, useState } from "react";
import { useTimezone } from "src/host";
import type { Column } from "src/pages/Data/dive/columns";
import { spreadOf } from "src/pages/Data/dive/filters";
import { textOf } from "src/pages/Data/dive/text";

const BINS = 40;
const HEIGHT = 44;
const LEAST_SHARE = 0.01;

interface Range {
  from: number;
  to: number;
}

/** Two places in order. */
const marked = (one: number, other: number): [number, number] => [Math.min(one, other), Math.max(one, other)];

/** A histogram in which a range is marked by dragging; or its ends are written. */
export function RangeFilter({
  column,
  others,
  range,
  onChange,
}: {
  column: Column;
  /** 1 for each row that passes the other filters. */
  others: Uint8Array;
  range: Range | null;
  onChange: (range: Range | null) => void;
}) {
  const zone = useTimezone();
  const spread = useMemo(() => spreadOf(column, others, BINS), [column, others]);
  const [drawn, setDrawn] = useState<[number, number] | null>(null);
  const start = useRef(0);
  const { min, max } = spread;
  const step = (max - min) / 200;
  const share = (value: number) => Math.min(Math.max((value - min) / (max - min || 1), 0), 1);
  const value = (at: number) => Number((min + at * (max - min)).toPrecision(column.role === "time" ? 15 : 6));
  const at = (event: PointerEvent) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - left) / width, 0), 1);
  };
  const [low, high] = drawn ?? (range ? [share(range.from), share(range.to)] : [0, 1]);
  const whole = low <= 0 && high >= 1;
  const tallest = Math.max(...spread.all, 1);
  const bar = (counts: number[], color: string) =>
    counts.map((count, bin) => (
      <Box
        // biome-ignore lint/suspicious/noArrayIndexKey: the bins do not move
        key={bin}
        position="absolute"
        bottom={0}
        bg={color}
        style={{
          left: `${(bin / BINS) * 100}%`,
          width: `calc(${100 / BINS}% - 1px)`,
          height: count ? Math.max((count / tallest) * HEIGHT, 1) : 0,
        }}
      />
    ));
  return (
    <>
      <Box
        position="relative"
        height={`${HEIGHT}px`}
        cursor="ew-resize"
        touchAction="none"
        title="Drag to mark a range; click to show all"
        data-brush={column.name}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          start.current = at(event);
          setDrawn([start.current, start.current]);
        }}
        onPointerMove={(event) => drawn && setDrawn(marked(start.current, at(event)))}
        onPointerCancel={() => setDrawn(null)}
        onPointerUp={(event) => {
          if (drawn) {
            // Of this event: what was drawn may be behind the pointer.
            const [from, to] = marked(start.current, at(event));
            onChange(to - from < LEAST_SHARE ? null : { from: value(from), to: value(to) });
            setDrawn(null);
          }
        }}
      >
        {bar(spread.all, "border.emphasized")}
        {bar(spread.shown, "brand.solid")}
        {!whole && (
          <>
            <Box position="absolute" inset={0} bg="bg" opacity={0.75} style={{ right: `${(1 - low) * 100}%` }} />
            <Box position="absolute" inset={0} bg="bg" opacity={0.75} style={{ left: `${high * 100}%` }} />
            <Box
              position="absolute"
              insetY={0}
              borderXWidth={2}
              borderColor="brand.solid"
              style={{ left: `${low * 100}%`, right: `${(1 - high) * 100}%` }}
            />
          </>
        )}
      </Box>
      <HStack mt={1} gap={1} fontSize="xs">
        {column.role === "time" ? (
          <Text color="fg.muted" fontVariantNumeric="tabular-nums">
            {textOf(column, value(low), zone)} – {textOf(column, value(high), zone)}
          </Text>
        ) : (
          <>
            <End
              label={`${column.name} from`}
              value={value(low)}
              step={step}
              onChange={(from) => onChange({ from, to: Math.max(from, range?.to ?? max) })}
            />
            <Text color="fg.muted">–</Text>
            <End
              label={`${column.name} to`}
              value={value(high)}
              step={step}
              onChange={(to) => onChange({ from: Math.min(to, range?.from ?? min), to })}
            />
          </>
        )}
      </HStack>
    </>
  );
}

/** An end of the range, written: it takes effect with Enter, or when one goes on. */
function End({
  label,
  value,
  step,
  onChange,
}: {
  label: string;
  value: number;
  step: number;
  onChange: (value: number) => void;
}) {
  const commit = (text: string) => {
    const written = Number(text);
    if (text.trim() !== "" && Number.isFinite(written) && written !== value) {
      onChange(written);
    }
  };
  return (
    <Input
      key={value}
      size="2xs"
      type="number"
      step={step || "any"}
      aria-label={label}
      defaultValue={value}
      onBlur={(event) => commit(event.currentTarget.value)}
      onKeyDown={(event) => event.key === "Enter" && commit(event.currentTarget.value)}
    />
  );
}
