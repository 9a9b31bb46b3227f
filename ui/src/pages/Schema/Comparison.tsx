import { Badge, Box, Flex, HStack, Text, VisuallyHidden } from "@chakra-ui/react";
import { useState } from "react";
import { LuCircleMinus, LuCirclePlus, LuPencil } from "react-icons/lu";
import { MANY, SearchInput, ShowMore, Toggle } from "src/components";
import { formatNumber, plural } from "src/format";
import { useQueryFlag, useQueryParam } from "src/hooks/useQueryState";
import type { SchemaComparison } from "src/pages/Schema/queries";
import { Value } from "src/pages/Schema/Value";
import { aspectName } from "src/pages/Schema/words";

type FeatureChange = SchemaComparison["features"][number];
type AspectChange = FeatureChange["aspects"][number];

const KINDS = {
  added: { palette: "success", icon: LuCirclePlus },
  removed: { palette: "failed", icon: LuCircleMinus },
  changed: { palette: "blue", icon: LuPencil },
} as const;

interface Props {
  comparison: SchemaComparison;
  before: string;
  after: string;
}

/** What differs between two schemas, feature by feature: before on the left, after on the right. */
export function Comparison({ comparison, before, after }: Props) {
  const [full, setFull] = useQueryFlag("full");
  const [search] = useQueryParam("change");
  const [limit, setLimit] = useState(MANY);
  const { features, unchanged } = comparison;
  const found = features.filter(({ name }) => name.toLowerCase().includes(search.toLowerCase()));
  if (features.length === 0) {
    return <Text color="fg.muted">No difference in {plural(unchanged, "feature")}.</Text>;
  }
  const counts = (["added", "removed", "changed"] as const).flatMap((change) => {
    const count = features.filter((feature) => feature.change === change).length;
    return count ? [`${formatNumber(count)} ${change}`] : [];
  });
  return (
    <Box>
      <HStack mb={2} gap={4} fontSize="sm" wrap="wrap">
        <Text color="fg.muted">
          {counts.join(", ")}, {formatNumber(unchanged)} unchanged
        </Text>
        <Toggle label="Show what stays the same" checked={full} onChange={setFull} />
        {features.length > MANY && <SearchInput name="change" placeholder="Search changed features" />}
      </HStack>
      <Box borderWidth={1} borderRadius="md" overflow="hidden" role="table" aria-label={`From ${before} to ${after}`}>
        <Flex role="row" bg="bg.subtle" fontSize="sm" fontWeight="semibold" borderBottomWidth={1}>
          <Box role="columnheader" width={NAME} flexShrink={0} px={3} py={1.5}>
            <VisuallyHidden>Property</VisuallyHidden>
          </Box>
          <Box role="columnheader" flex={1} px={3} py={1.5}>
            {before}
          </Box>
          <Box role="columnheader" flex={1} px={3} py={1.5} borderLeftWidth={1}>
            {after}
          </Box>
        </Flex>
        {found.slice(0, limit).map((feature) => (
          <Feature key={feature.name} feature={feature} full={full} />
        ))}
      </Box>
      <ShowMore shown={limit} of={found.length} onMore={setLimit} />
    </Box>
  );
}

function Feature({ feature, full }: { feature: FeatureChange; full: boolean }) {
  const { palette, icon: Icon } = KINDS[feature.change];
  const aspects = feature.aspects.filter(({ changed }) => full || changed);
  return (
    <Box role="rowgroup" _notFirst={{ borderTopWidth: 1 }}>
      <Flex role="row" px={3} py={2} gap={3} align="baseline" wrap="wrap">
        <HStack role="rowheader" gap={2} minW={0}>
          <Text fontWeight="semibold" wordBreak="break-word">
            {feature.name || "the schema as a whole"}
          </Text>
          <Badge colorPalette={palette} variant="subtle">
            <Icon aria-hidden /> {feature.change}
          </Badge>
        </HStack>
        <Text role="cell" fontSize="sm" color="fg.muted" wordBreak="break-word">
          {feature.texts.join("; ")}
        </Text>
      </Flex>
      {aspects.map((aspect) => (
        <Aspect key={aspect.name} aspect={aspect} />
      ))}
    </Box>
  );
}

function Aspect({ aspect }: { aspect: AspectChange }) {
  return (
    <Flex role="row" fontSize="sm" align="stretch">
      <Box role="rowheader" width={NAME} flexShrink={0} px={3} py={1} color="fg.muted" wordBreak="break-word">
        {aspectName(aspect.name)}
      </Box>
      <Side aspect={aspect} side="before" />
      <Side aspect={aspect} side="after" />
    </Flex>
  );
}

/** Of the column with the names. */
const NAME = { base: "20", md: "36" };

const SIDES = {
  before: { palette: "failed", mark: "−", word: "removed" },
  after: { palette: "success", mark: "+", word: "added" },
} as const;

function Side({ aspect, side }: { aspect: AspectChange; side: "before" | "after" }) {
  const { palette, mark, word } = SIDES[side];
  const text = aspect[side];
  const marked = aspect.changed && text !== null;
  const values = side === "before" ? aspect.lost : aspect.gained;
  const count = side === "before" ? aspect.lost_count : aspect.gained_count;
  const isDomain = aspect.name === "domain" && aspect.gained_count + aspect.lost_count > 0;
  return (
    <Flex
      role="cell"
      flex={1}
      minW={0}
      gap={{ base: 1, md: 2 }}
      px={{ base: 2, md: 3 }}
      py={1}
      borderLeftWidth={side === "after" ? 1 : 0}
      colorPalette={palette}
      bg={marked && !(isDomain && count === 0) ? "colorPalette.subtle" : text === null ? "bg.subtle" : undefined}
    >
      <Text as="span" width="3" fontWeight="bold" color="colorPalette.fg" userSelect="none" aria-hidden={!marked}>
        {marked && !(isDomain && count === 0) ? mark : ""}
      </Text>
      <Box minW={0} overflowWrap="anywhere">
        {isDomain && text !== null ? (
          <Flex wrap="wrap" gap={1} align="center">
            <Text as="span" color={marked ? undefined : "fg.muted"}>
              {aspect.kept ? `${plural(aspect.kept, "value")} in both` : ""}
              {aspect.kept && count ? ", " : ""}
              {count ? `${formatNumber(count)} ${word}` : ""}
            </Text>
            {values.map((value) => (
              <Value key={value} palette={palette} mark={mark}>
                {value}
              </Value>
            ))}
            {count > values.length && <Text as="span">and {formatNumber(count - values.length)} more</Text>}
          </Flex>
        ) : (
          (text ?? <Text color="fg.muted">–</Text>)
        )}
      </Box>
    </Flex>
  );
}
