import { Tabs } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { useChosenInView } from "src/hooks/useChosenInView";

interface Tab {
  name: string;
  label: ReactNode;
  content: ReactNode;
}

interface Props {
  tabs: readonly Tab[];
  /** The name of the one that is shown; the first stands for one that is not there. */
  opened: string;
  onOpen: (name: string) => void;
}

/** Tabs, of which only the one that is shown is rendered. */
export function TabPanels({ tabs, opened, onOpen }: Props) {
  const place = Math.max(
    tabs.findIndex(({ name }) => name === opened),
    0,
  );
  const row = useChosenInView(place);
  return (
    <Tabs.Root value={tabs[place]?.name} onValueChange={({ value }) => onOpen(value)} size="sm" lazyMount unmountOnExit>
      <Tabs.List ref={row} overflowX="auto" overflowY="hidden" css={{ "& > *": { flexShrink: 0 } }}>
        {tabs.map(({ name, label }) => (
          <Tabs.Trigger key={name} value={name}>
            {label}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      {tabs.map(({ name, content }) => (
        <Tabs.Content key={name} value={name}>
          {content}
        </Tabs.Content>
      ))}
    </Tabs.Root>
  );
}
