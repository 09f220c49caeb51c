// What the page remembers between visits. Browsers may forbid that, then it forgets.

/** `area` is localStorage or, for what must not outlive the window, sessionStorage; by name, since asking may throw. */
export function recall(key, area = "localStorage") {
  try {
    return window[area].getItem(`voicechat.${key}`) ?? "";
  } catch {
    return "";
  }
}

export function remember(key, value, area = "localStorage") {
  try {
    window[area].setItem(`voicechat.${key}`, value);
  } catch {
    // then it is asked for again
  }
}
