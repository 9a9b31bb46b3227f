import { Box, chakra, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { formatCount, formatPercent } from "src/format";
import type { Coloring } from "src/pages/Data/dive/color";
import { countGroups } from "src/pages/Data/dive/groups";
import { Section } from "src/pages/Data/dive/Section";

interface LegendProps {
  coloring: Coloring;
  shown: Uint8Array;
  shownCount: number;
  /** Gets the index of a group of single values. */
  onKeep: (group: number) => void;
}

/** What the colours mean, with how many of the rows that are shown have each. A click keeps only those. */
export function Legend({ coloring, shown, shownCount, onKeep }: LegendProps) {
  const { groups, range, palette } = coloring;
  const counts = useMemo(() => groups && countGroups(groups, shown), [groups, shown]);
  if (range) {
    return (
      <Section title={`Colour: ${range.column.name}`}>
        <Box
          height={3}
          borderRadius="sm"
          style={{ background: `linear-gradient(to right, ${palette.slice(0, -1).join(",")})` }}
        />
        <Box position="relative" height={4} mt={0.5} fontSize="2xs" color="fg.muted">
          {range.ticks.map(({ at, label }) => (
            <Text
              key={at}
              as="span"
              position="absolute"
              style={{ left: `${at * 100}%`, transform: `translateX(-${at * 100}%)` }}
              whiteSpace="nowrap"
            >
              {label}
            </Text>
          ))}
        </Box>
        {range.column.nulls > 0 && (
          <Entry color={palette.at(-1)} label="missing" count={range.column.nulls} share={null} />
        )}
      </Section>
    );
  }
  if (!groups || !counts) {
    return null;
  }
  return (
    <Section title={`Colour: ${groups.column.name}`}>
      <Box as="ul" listStyleType="none">
        {groups.labels.map((label, index) => (
          <Entry
            // A value may be called as the group of missing ones is.
            key={`${groups.keys[index] ?? "@"} ${label}`}
            color={palette[index]}
            label={label}
            count={counts[index] ?? 0}
            share={(counts[index] ?? 0) / Math.max(shownCount, 1)}
            onKeep={index === groups.other ? undefined : () => onKeep(index)}
          />
        ))}
      </Box>
    </Section>
  );
}

interface EntryProps {
  color: string | undefined;
  label: string;
  count: number;
  share: number | null;
  onKeep?: () => void;
}

function Entry({ color, label, count, share, onKeep }: EntryProps) {
  const content = (
    <HStack gap={2} fontSize="xs" py={0.5} width="full">
      <Box boxSize={2.5} borderRadius="full" flexShrink={0} style={{ background: color }} />
      <Text truncate title={label}>
        {label}
      </Text>
      <Text marginInlineStart="auto" color="fg.muted" fontVariantNumeric="tabular-nums" whiteSpace="nowrap">
        {formatCount(count)}
        {share === null ? "" : ` · ${formatPercent(share, 3)}`}
      </Text>
    </HStack>
  );
  return onKeep ? (
    <li>
      <chakra.button
        type="button"
        width="full"
        textAlign="start"
        cursor="pointer"
        borderRadius="sm"
        _hover={{ bg: "bg.muted" }}
        title={`Show only ${label}`}
        onClick={onKeep}
      >
        {content}
      </chakra.button>
    </li>
  ) : (
    <li>{content}</li>
  );
}
