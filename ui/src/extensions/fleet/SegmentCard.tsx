import { Badge, chakra, HStack, Stack, Text } from "@chakra-ui/react";
import { formatNumber, formatPercent, Sparkline, StateBadge } from "airflow-hops";
import type { SegmentEntry } from "src/extensions/fleet/queries";
import { keyInWords, STATE_WORDS, saving } from "src/extensions/fleet/story";

const PALETTES: Record<string, string> = { own: "brand", continued: "purple", pooled: "gray" };

/** Which model answers a segment. */
export function ModelBadge({ state }: { state: string }) {
  return (
    <Badge variant="surface" colorPalette={PALETTES[state] ?? "gray"} title={STATE_WORDS[state]} flexShrink={0}>
      {state}
    </Badge>
  );
}

/** A segment among many: its loss over the versions beside the pooled model's. */
export function SegmentCard({ entry, onOpen }: { entry: SegmentEntry; onOpen: () => void }) {
  const { segment, state, reason, rows, loss, pooled_loss: pooled, losses, drifted, failed } = entry;
  const key = keyInWords(segment);
  const saved = saving(loss, pooled);
  return (
    <chakra.button
      type="button"
      data-segment={segment}
      onClick={onOpen}
      textAlign="start"
      borderWidth={1}
      borderRadius="md"
      p={3}
      minW={0}
      cursor="pointer"
      _hover={{ bg: "bg.subtle" }}
    >
      <Stack gap={1}>
        <HStack justify="space-between" gap={2}>
          <Text fontWeight="medium" truncate title={key}>
            {key}
          </Text>
          <HStack gap={1} flexShrink={0}>
            {failed && <StateBadge state="failed" />}
            {drifted && <StateBadge state="drift" />}
          </HStack>
        </HStack>
        <Sparkline
          values={losses}
          min={Math.min(...[...losses, pooled].filter((each) => each !== null))}
          threshold={pooled}
          width={190}
          height={36}
          palette={drifted ? "orange" : "blue"}
          fills
          label={`Loss of ${key} by version: now ${formatNumber(loss)}, the pooled model's ${formatNumber(pooled)}`}
        />
        <HStack justify="space-between" fontSize="sm" fontVariantNumeric="tabular-nums">
          <Text>
            {formatNumber(loss)}
            {saved !== null && state !== "pooled" && (
              <chakra.span color="fg.muted" ms={1} title="than the pooled model">
                ({formatPercent(Math.abs(saved), 2)} {saved < 0 ? "worse" : "better"})
              </chakra.span>
            )}
          </Text>
          <Text color="fg.muted">{formatNumber(rows)} rows</Text>
        </HStack>
        <HStack gap={2}>
          <ModelBadge state={state} />
          {(failed || state === "pooled") && (
            <Text fontSize="xs" color="fg.muted" truncate title={reason}>
              {reason}
            </Text>
          )}
        </HStack>
      </Stack>
    </chakra.button>
  );
}
