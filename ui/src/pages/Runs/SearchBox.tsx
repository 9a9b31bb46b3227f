import { Box, Button, CloseButton, Code, HStack, Input, InputGroup, Menu, Portal, Text } from "@chakra-ui/react";
import { type KeyboardEvent, useEffect, useMemo, useRef, useState } from "react";
import { LuChevronDown, LuSearch } from "react-icons/lu";
import { ERROR } from "src/components/colors";
import type { Names, Run } from "src/pages/Runs/figures";
import { type Completion, complete, examplesOf } from "src/pages/Runs/search";

/** The search: names and values are completed while one types, Enter asks, and what is wrong is pointed at. */
export function SearchBox({
  value,
  onSearch,
  error,
  names,
  runs,
}: {
  value: string;
  onSearch: (filter: string) => void;
  /** Why the API cannot answer it. */
  error: string | null;
  names: Names;
  runs: readonly Run[];
}) {
  const [typed, setTyped] = useState(value);
  const [cursor, setCursor] = useState<number | null>(null);
  const [marked, setMarked] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => setTyped(value), [value]);
  const offered = useMemo(
    () => (cursor === null ? [] : complete(typed, cursor, names, runs)),
    [typed, cursor, names, runs],
  );

  const take = ({ text, from }: Completion) => {
    const after = typed.slice(cursor ?? typed.length);
    const begun = `${typed.slice(0, from)}${text} `;
    setTyped(begun + after.trimStart());
    setMarked(-1);
    requestAnimationFrame(() => {
      input.current?.setSelectionRange(begun.length, begun.length);
      setCursor(begun.length);
    });
  };
  const ask = (filter: string) => {
    setCursor(null);
    setMarked(-1);
    onSearch(filter.trim());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const one = offered[marked];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      setCursor(cursor ?? input.current?.selectionStart ?? typed.length);
      setMarked(Math.min(Math.max(marked + step, -1), offered.length - 1));
    } else if (event.key === "Tab" && offered.length > 0 && typed !== value) {
      take(one ?? (offered[0] as Completion));
    } else if (event.key === "Enter") {
      if (one) {
        take(one);
      } else {
        ask(typed);
      }
    } else if (event.key === "Escape") {
      setCursor(null);
    } else {
      return;
    }
    event.preventDefault();
  };

  return (
    <Box flex={1} minW="min(320px, 100%)" position="relative">
      <HStack gap={2}>
        <InputGroup
          flex={1}
          startElement={<LuSearch />}
          endElement={typed && <CloseButton size="2xs" aria-label="Clear the filter" onClick={() => ask("")} />}
        >
          <Input
            ref={input}
            size="sm"
            fontFamily="mono"
            role="combobox"
            aria-label="Filter runs"
            aria-expanded={offered.length > 0}
            aria-controls="run-completions"
            aria-activedescendant={offered[marked] && `run-completion-${marked}`}
            aria-autocomplete="list"
            aria-invalid={error !== null}
            borderColor={error === null ? undefined : "border.error"}
            placeholder="metrics.auc > 0.7 AND params.optimizer = 'adam'"
            spellCheck={false}
            autoComplete="off"
            value={typed}
            onChange={(event) => {
              setTyped(event.target.value);
              setCursor(event.target.selectionStart);
              setMarked(-1);
            }}
            onClick={(event) => setCursor(event.currentTarget.selectionStart)}
            onBlur={() => setCursor(null)}
            onKeyDown={onKeyDown}
          />
        </InputGroup>
        <Examples names={names} onChoose={(filter) => (filter.includes("…") ? setTyped(filter) : ask(filter))} />
      </HStack>
      {offered.length > 0 && <Completions offered={offered} marked={marked} onTake={take} />}
      {error !== null && <Fault filter={value} error={error} />}
    </Box>
  );
}

function Completions({
  offered,
  marked,
  onTake,
}: {
  offered: readonly Completion[];
  marked: number;
  onTake: (one: Completion) => void;
}) {
  return (
    <Box
      id="run-completions"
      role="listbox"
      position="absolute"
      zIndex="dropdown"
      top="36px"
      left={0}
      minW="min(360px, 100%)"
      bg="bg.panel"
      borderWidth={1}
      borderRadius="md"
      shadow="md"
      py={1}
    >
      {offered.map((each, index) => (
        <HStack
          key={each.text}
          id={`run-completion-${index}`}
          role="option"
          aria-selected={index === marked}
          px={3}
          py={1}
          fontSize="sm"
          cursor="pointer"
          bg={index === marked ? "bg.emphasized" : undefined}
          _hover={{ bg: "bg.muted" }}
          onMouseDown={(event) => {
            event.preventDefault();
            onTake(each);
          }}
        >
          <Text fontFamily="mono">{each.text}</Text>
          <Text color="fg.muted" fontSize="xs" marginInlineStart="auto">
            {each.hint}
          </Text>
        </HStack>
      ))}
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
