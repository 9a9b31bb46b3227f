import { useCallback, useEffect, useRef, useState } from "react";
import { type Sort, useSort } from "src/hooks/useQueryState";

/** The order of the address, which follows a click only when its outcome is painted: all of the page looks there. */
export function useSortAtOnce(name: string, initial: Sort | null): [Sort | null, (sort: Sort | null) => void] {
  const [addressed, address] = useSort(name, initial);
  const [sort, setSort] = useState(addressed);
  const pending = useRef<{ frame: number; timer?: number }>({ frame: 0 });
  const cancel = useCallback(() => {
    cancelAnimationFrame(pending.current.frame);
    clearTimeout(pending.current.timer);
  }, []);
  useEffect(() => setSort(addressed), [addressed]);
  useEffect(() => cancel, [cancel]);
  const change = (next: Sort | null) => {
    cancel();
    setSort(next);
    pending.current.frame = requestAnimationFrame(() => {
      pending.current.timer = window.setTimeout(() => address(next));
    });
  };
  return [sort, change];
}
