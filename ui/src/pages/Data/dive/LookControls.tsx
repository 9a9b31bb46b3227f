import { HStack } from "@chakra-ui/react";
import { Amount } from "src/components/Amount";
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
  const amounts = [
    { label: "Size", name: "size", value: look.radius, usual: DEFAULT_LOOK.radius, min: 0.5, max: 8, step: 0.5 },
    { label: "Opacity", name: "opacity", value: look.opacity, usual: DEFAULT_LOOK.opacity, min: 0.05, max: 1, step: 0.05 },
    { label: "Jitter", name: "jitter", value: jitter, usual: DEFAULT_JITTER, min: 0, max: 1, step: 0.1 },
  ]; // biome-ignore format: as a table
  return (
    <HStack gap={3} wrap="wrap">
      {amounts.map(({ name, usual, ...amount }) => (
        <Labelled key={name} label={amount.label}>
          <Amount
            size="sm"
            width="72px"
            onChange={(value) => change({ [name]: value === usual ? null : String(value) })}
            {...amount}
          />
        </Labelled>
      ))}
    </HStack>
  );
}
