import { Tabs } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { LoadingRows } from "src/components/Loading";
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
  /** Whether more tabs may come yet, of which one may be that which is shown. */
  loading?: boolean;
}

/** Tabs, of which only the one that is shown is rendered. */
export function TabPanels({ tabs, opened, onOpen, loading = false }: Props) {
  const place = tabs.findIndex(({ name }) => name === opened);
  const shown = tabs[place] ?? (loading ? undefined : tabs[0]);
  const row = useChosenInView(Math.max(place, 0));
  return (
    <Tabs.Root
      value={shown?.name ?? null}
      onValueChange={({ value }) => onOpen(value)}
      size="sm"
      lazyMount
      unmountOnExit
    >
      <Tabs.List ref={row} overflow="auto hidden" css={{ scrollbarWidth: "none", "& > *": { flexShrink: 0 } }}>
        {tabs.map(({ name, label }) => (
          <Tabs.Trigger key={name} value={name}>
            {label}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      {shown === undefined && <LoadingRows />}
      {tabs.map(({ name, content }) => (
        <Tabs.Content key={name} value={name}>
          {content}
        </Tabs.Content>
      ))}
    </Tabs.Root>
  );
}
