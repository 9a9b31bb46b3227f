import { SegmentGroup } from "@chakra-ui/react";
import type { ReactNode } from "react";

type Props = Omit<SegmentGroup.RootProps, "value" | "onChange" | "onValueChange" | "disabled"> & {
  label: string;
  value: string;
  onChange: (value: string) => void;
  items: readonly (readonly [string, ReactNode])[];
};

const CHOSEN = { color: "brand.contrast", fontWeight: "semibold" };

/** One of a few choices, all of them in sight: value and text of each. */
export function Segments({ label, value, onChange, items, ...props }: Props) {
  return (
    <SegmentGroup.Root
      size="sm"
      value={value}
      onValueChange={(change) => change.value !== null && onChange(change.value)}
      aria-label={label}
      minWidth={0}
      maxWidth="full"
      overflowX="auto"
      scrollbarWidth="none"
      {...props}
    >
      <SegmentGroup.Indicator bg="brand.solid" />
      {items.map(([key, text]) => (
        <SegmentGroup.Item key={key} flexShrink={0} value={key} _checked={CHOSEN}>
          <SegmentGroup.ItemText whiteSpace="nowrap">{text}</SegmentGroup.ItemText>
          <SegmentGroup.ItemHiddenInput />
        </SegmentGroup.Item>
      ))}
    </SegmentGroup.Root>
  );
}
