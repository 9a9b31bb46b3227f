import { Box, chakra, HStack, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { formatCount } from "src/format";
import { useTimezone } from "src/host";
import type { Column } from "src/pages/Data/dive/columns";
import { textOf } from "src/pages/Data/dive/text";

const MOST = 60;
const MANY = 12;

/** A value, what the address calls it, and how many rows have it. */
interface ValueCount {
  value: number;
  key: string | null;
  all: number;
  shown: number;
}

interface Props {
  column: Column;
  values: readonly ValueCount[];
  taken: readonly (string | null)[];
  onTick: (value: string | null, checked: boolean) => void;
}

/** Values of which any number may be taken; none taken is no filter. */
export function ValueFilter({ column, values, taken, onTick }: Props) {
  const zone = useTimezone();
  const [search, setSearch] = useState("");
  const named = values.map((each) => ({ ...each, text: textOf(column, each.value, zone) }));
  const found = named.filter(({ text }) => text.toLowerCase().includes(search.toLowerCase()));
  const most = Math.max(...values.map(({ all }) => all), 1);
  return (
    <>
      {values.length > MANY && (
        <Input
          size="2xs"
          mb={1}
          placeholder={`Search ${values.length} values`}
          aria-label={`Search values of ${column.name}`}
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value)}
        />
      )}
      <Box as="ul" listStyleType="none" maxH="180px" overflowY="auto">
        {found.slice(0, MOST).map(({ key, text, all, shown }) => (
          <li key={key === null ? "\0missing" : `=${key}`}>
            <HStack as="label" gap={2} fontSize="xs" cursor="pointer" position="relative" py="1px">
              <chakra.input
                type="checkbox"
                accentColor="brand.solid"
                checked={taken.includes(key)}
                onChange={(event) => onTick(key, event.currentTarget.checked)}
              />
              <Text truncate flex={1} title={text} fontStyle={key === null ? "italic" : undefined}>
                {text}
              </Text>
              <Box width="60px" height="6px" bg="bg.muted" borderRadius="xs" flexShrink={0}>
                <Box height="full" bg="brand.solid" borderRadius="xs" style={{ width: `${(shown / most) * 100}%` }} />
              </Box>
              <Text width="44px" textAlign="end" color="fg.muted" fontVariantNumeric="tabular-nums">
                {formatCount(shown === 0 ? 0 : Math.min(shown, all))}
              </Text>
            </HStack>
          </li>
        ))}
      </Box>
      {found.length > MOST && (
        <Text fontSize="2xs" color="fg.muted" mt={1}>
          {found.length - MOST} more; search to find them
        </Text>
      )}
    </>
  );
}
