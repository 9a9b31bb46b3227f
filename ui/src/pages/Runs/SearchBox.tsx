import { Box, Button, CloseButton, Code, HStack, Input, InputGroup, Menu, Portal, Text } from "@chakra-ui/react";
import { LuChevronDown, LuSearch } from "react-icons/lu";
import { ERROR } from "src/components/colors";
import { useTyped } from "src/hooks/useTyped";
import type { Names } from "src/pages/Runs/figures";
import { examplesOf } from "src/pages/Runs/search";

/** The search: Enter asks, and what is wrong is pointed at. */
export function SearchBox({
  value,
  onSearch,
  error,
  names,
}: {
  value: string;
  onSearch: (filter: string) => void;
  /** Why the API cannot answer it. */
  error: string | null;
  names: Names;
}) {
  const { typed, type, note } = useTyped("filter", value);
  const ask = (filter: string) => {
    type(filter);
    note(filter);
    onSearch(filter);
  };
  return (
    <Box flex={1} minW="min(320px, 100%)">
      <HStack gap={2}>
        <InputGroup
          flex={1}
          startElement={<LuSearch />}
          endElement={typed && <CloseButton size="2xs" aria-label="Clear the filter" onClick={() => ask("")} />}
        >
          <Input
            size="sm"
            fontFamily="mono"
            aria-label="Filter runs"
            aria-invalid={error !== null}
            borderColor={error === null ? undefined : "border.error"}
            placeholder="metrics.auc > 0.7 AND params.optimizer = 'adam'"
            spellCheck={false}
            autoComplete="off"
            value={typed}
            onChange={(event) => type(event.target.value)}
            onKeyDown={(event) => event.key === "Enter" && ask(typed.trim())}
          />
        </InputGroup>
        <Examples names={names} onChoose={(filter) => (filter.includes("…") ? type : ask)(filter)} />
      </HStack>
      {error !== null && <Fault filter={value} error={error} />}
    </Box>
  );
}

/** Points at the character that the API names. */
function Fault({ filter, error }: { filter: string; error: string }) {
  const [, character, why] = /^filter, character (\d+): (.*)$/s.exec(error) ?? [];
  if (character === undefined) {
    return (
      <Text role="alert" mt={1} fontSize="sm" color={ERROR}>
        {error}
      </Text>
    );
  }
  const at = Number(character) - 1;
  return (
    <Box role="alert" mt={1} fontSize="sm" color={ERROR}>
      <Code variant="plain" color="fg.muted" px={0} whiteSpace="pre-wrap">
        {filter.slice(0, at)}
        <Text as="mark" bg="bg.error" color={ERROR} textDecoration="underline wavy">
          {filter.slice(at) || " "}
        </Text>
      </Code>
      <Text>
        At character {character}: {why}
      </Text>
    </Box>
  );
}

function Examples({ names, onChoose }: { names: Names; onChoose: (filter: string) => void }) {
  return (
    <Menu.Root>
      <Menu.Trigger asChild>
        <Button size="sm" variant="outline" colorPalette="gray">
          Examples
          <LuChevronDown />
        </Button>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content>
            {examplesOf(names).map((filter) => (
              <Menu.Item key={filter} value={filter} fontFamily="mono" onClick={() => onChoose(filter)}>
                {filter}
              </Menu.Item>
            ))}
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
}
