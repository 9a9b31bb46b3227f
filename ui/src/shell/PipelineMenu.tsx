import { Button, Menu, Portal, Text } from "@chakra-ui/react";
import { useState } from "react";
import { LuChevronDown } from "react-icons/lu";
import { useNavigate } from "react-router-dom";
import { usePipelines } from "src/api/pipelines";
import { AppLink } from "src/components";
import { overviewPath, pagePath } from "src/routes";

/** The choice of the pipeline, in the breadcrumbs; the page stays. */
export function PipelineMenu({ dagId, page }: { dagId: string | null; page: string }) {
  // The list of all pipelines takes the server longer than most pages do: it is asked for when the menu may be opened.
  const [wanted, setWanted] = useState(false);
  const { data, isError } = usePipelines({ enabled: wanted || dagId === null });
  const navigate = useNavigate();
  const ids = data?.entries.map((pipeline) => pipeline.dag_id) ?? [];
  const current = dagId ?? (ids.length === 1 ? ids[0] : undefined);
  return (
    <Menu.Root onOpenChange={() => setWanted(true)}>
      {current !== undefined && <AppLink to={overviewPath(current)}>{current}</AppLink>}
      <Menu.Trigger asChild>
        <Button
          size="xs"
          variant="ghost"
          colorPalette="gray"
          fontSize="sm"
          px={1}
          onPointerEnter={() => setWanted(true)}
          onFocus={() => setWanted(true)}
          aria-label={current ? `${current}: choose a pipeline` : "Choose a pipeline"}
        >
          {current === undefined && "Choose a pipeline"}
          <LuChevronDown />
        </Button>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content maxH="80" overflowY="auto">
            <Menu.RadioItemGroup value={current} onValueChange={({ value }) => void navigate(pagePath(page, value))}>
              {data === undefined && <Text p={2}>{isError ? "The pipelines are not known." : "Loading…"}</Text>}
              {ids.map((id) => (
                <Menu.RadioItem key={id} value={id}>
                  <Menu.ItemIndicator />
                  {id}
                </Menu.RadioItem>
              ))}
            </Menu.RadioItemGroup>
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
}
