import { Box, HStack, Slider } from "@chakra-ui/react";
import { useQuery } from "src/hooks/useQueryState";
import { Labelled } from "src/pages/Data/dive/Labelled";
import { DEFAULT_JITTER, numberIn } from "src/pages/Data/dive/settings";

/** How points look. */
export interface Look {
  /** Pixels. */
  radius: number;
  /** 0 to 1. */
  opacity: number;
}

const DEFAULT_LOOK: Look = { radius: 2.5, opacity: 0.6 };

/** What the address says. */
export const readLook = (query: URLSearchParams): Look => ({
  radius: numberIn(query.get("size"), DEFAULT_LOOK.radius, 0.5, 8),
  opacity: numberIn(query.get("opacity"), DEFAULT_LOOK.opacity, 0.05, 1),
});

/** Size and opacity of the points, and how far equal ones are spread. */
export function LookControls({ look, jitter }: { look: Look; jitter: number }) {
  const [, change] = useQuery();
  return (
    <HStack gap={3} wrap="wrap">
      <Amount
        label="Size"
        value={look.radius}
        from={0.5}
        to={8}
        step={0.5}
        onChange={(value) => change({ size: value === DEFAULT_LOOK.radius ? null : String(value) })}
      />
      <Amount
        label="Opacity"
        value={look.opacity}
        from={0.05}
        to={1}
        step={0.05}
        onChange={(value) => change({ opacity: value === DEFAULT_LOOK.opacity ? null : String(value) })}
      />
      <Amount
        label="Jitter"
        value={jitter}
        from={0}
        to={1}
        step={0.1}
        onChange={(value) => change({ jitter: value === DEFAULT_JITTER ? null : String(value) })}
      />
    </HStack>
  );
}

function Amount({
  label,
  value,
  from,
  to,
  step,
  onChange,
}: {
  label: string;
  value: number;
  from: number;
  to: number;
  step: number;
  onChange: (value: number) => void;
}) {
  return (
    <Labelled label={label}>
      <Box width="72px">
        <Slider.Root
          size="sm"
          colorPalette="brand"
          aria-label={[label]}
          min={from}
          max={to}
          step={step}
          value={[value]}
          onValueChange={({ value: [changed] }) => changed !== undefined && onChange(changed)}
        >
          <Slider.Control>
            <Slider.Track>
              <Slider.Range />
            </Slider.Track>
            <Slider.Thumbs />
          </Slider.Control>
        </Slider.Root>
      </Box>
    </Labelled>
  );
}
