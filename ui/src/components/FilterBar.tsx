import { Button, CloseButton, HStack, Input, InputGroup, Text } from "@chakra-ui/react";
import { type ReactNode, useEffect, useState } from "react";
import { LuChevronDown, LuSearch } from "react-icons/lu";
import { CheckMenu } from "src/components/CheckMenu";
import { ticked, useQueryList, useQueryParam } from "src/hooks/useQueryState";

const SETTLE_MS = 200;

/** A row of filters above what they filter; on the right, `summary`: how much is left. */
export function FilterBar({ children, summary }: { children: ReactNode; summary?: ReactNode }) {
  return (
    <HStack gap={2} wrap="wrap" role="search">
      {children}
      {summary !== undefined && (
        <Text marginInlineStart="auto" color="fg.muted" fontSize="sm" aria-live="polite">
          {summary}
        </Text>
      )}
    </HStack>
  );
}

/** Text to search for, kept in the query under `name`; it takes effect when the typing pauses. */
export function SearchInput({ name = "search", placeholder = "Search" }: { name?: string; placeholder?: string }) {
  const [value, setValue] = useQueryParam(name);
  const [typed, type] = useState(value);
  const [known, setKnown] = useState(value);
  if (value !== known) {
    // By a link, or the back button.
    setKnown(value);
    type(value);
  }
  useEffect(() => {
    if (typed !== known) {
      const timer = window.setTimeout(() => {
        setKnown(typed);
        setValue(typed);
      }, SETTLE_MS);
      return () => window.clearTimeout(timer);
    }
  }, [typed, known, setValue]);
  return (
    <InputGroup
      width={{ base: "full", md: "64" }}
      startElement={<LuSearch />}
      endElement={typed && <CloseButton size="2xs" aria-label="Clear" onClick={() => type("")} />}
    >
      <Input
        size="sm"
        type="text"
        aria-label={placeholder}
        placeholder={placeholder}
        value={typed}
        onChange={(event) => type(event.target.value)}
      />
    </InputGroup>
  );
}

interface ChoiceProps {
  name: string;
  label: string;
  choices: readonly { value: string; label?: ReactNode; count?: number }[];
}

/** Choices of which any number may be taken, kept in the query under `name`; none taken is no filter. */
export function ChoiceFilter({ name, label, choices }: ChoiceProps) {
  const [taken, setTaken] = useQueryList(name);
  return (
    <CheckMenu
      trigger={
        <Button size="sm" variant="outline" colorPalette={taken.length ? "brand" : "gray"}>
          {taken.length ? `${label}: ${taken.length === 1 ? taken[0] : taken.length}` : label}
          <LuChevronDown />
        </Button>
      }
      items={choices.map((each) => ({ ...each, checked: taken.includes(each.value) }))}
      onCheck={(value, checked) => setTaken((before) => ticked(before, value, checked))}
    />
  );
}
