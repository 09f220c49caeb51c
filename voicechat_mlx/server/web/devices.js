// Which microphone and which loudspeaker. Browsers tell their names only once the microphone was allowed.

const KINDS = { audioinput: "microphone", audiooutput: "speaker" };

export class Devices {
  /** `menus`: { microphone, speaker }, two select elements. `remembered`: ids chosen before. */
  constructor(menus, remembered) {
    this.menus = menus;
    this.remembered = remembered;
    if (!("setSinkId" in AudioContext.prototype)) menus.speaker.closest(".field").hidden = true;
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.refresh());
  }

  /** Fill the menus with what there is now. */
  async refresh() {
    const found = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
    for (const [kind, name] of Object.entries(KINDS)) {
      const menu = this.menus[name];
      const chosen = menu.value || this.remembered[name] || "";
      const named = found.filter((device) => device.kind === kind && device.deviceId && device.deviceId !== "default");
      const options = named.map((device, n) => new Option(device.label || `${menu.dataset.name} ${n + 1}`, device.deviceId));
      menu.replaceChildren(new Option("The system’s choice", ""), ...options);
      menu.value = named.some((device) => device.deviceId === chosen) ? chosen : "";
    }
  }
}
